"""YAML front matter of a file that anybody may have written.

Of YAML only what such a head needs is read: no anchors and aliases, with which 400 bytes
stand for gigabytes, little nesting and a bounded number of tokens. What counts are texts
at the top; everything else in it is read over. What the parser refuses is read line by
line, and ``problem`` says so.
"""

import re
from dataclasses import dataclass

import yaml

KEYS = ("name", "description", "disable-model-invocation")

MAX_TOKENS = 400
MAX_NESTING = 16
"""Of lists and mappings. For each token the parser looks at all that are open."""

_PLAIN_LINE = re.compile(rf"^({'|'.join(KEYS)})[ \t]*:[ \t]*+(?![&*])(.*)$", re.M)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """``texts``: the values of KEYS that are texts. ``problem`` is a clause about what
    could not be used, empty if there is nothing to say."""

    texts: dict[str, str]
    problem: str = ""


class TooMuch(yaml.YAMLError):
    """YAML that is not read here; the text says why."""


class BoundedLoader(yaml.BaseLoader):
    """Makes texts, lists and mappings, as ``BaseLoader`` does, of a bounded head."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.tokens_left = MAX_TOKENS

    def fetch_more_tokens(self) -> None:
        self.tokens_left -= 1
        if self.tokens_left < 0:
            raise TooMuch(f"it has more than {MAX_TOKENS} parts")
        if self.flow_level + len(self.indents) > MAX_NESTING:
            raise TooMuch(f"it is nested deeper than {MAX_NESTING}")
        super().fetch_more_tokens()

    def fetch_alias(self) -> None:
        raise TooMuch("it has an alias (*)")

    def fetch_anchor(self) -> None:
        raise TooMuch("it has an anchor (&)")


def read_front_matter(source: str) -> FrontMatter:
    """Never raises."""
    problem = ""
    try:
        value = BoundedLoader(source).get_single_data()
    except TooMuch as error:
        value, problem = None, f"its front matter is read line by line, since {error}"
    except (yaml.YAMLError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        lines = {key: words.strip("\"' ") for key, words in _PLAIN_LINE.findall(source)}
        return FrontMatter(lines, problem)
    no_texts = [key for key in KEYS if not isinstance(value.get(key, ""), str)]
    if no_texts:
        problem = f"{' and '.join(no_texts)} of its front matter must be text"
    return FrontMatter(
        {key: value[key] for key in KEYS if isinstance(value.get(key), str)}, problem
    )
