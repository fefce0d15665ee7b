"""Code blocks: one markup for all of them, with colours by CSS classes.

Highlighting is decoration, so it is skipped whenever it could cost too much. Many lexers are
quadratic in the length of a line, of a run of white space, or of a construct whose end they do not
find. Code that exceeds a limit on one of these three is shown plain. The limits are counts and not
times, so a row has the same HTML on every machine. A file that is shown may be longer, because a
separate process that can be stopped runs the lexer. The result of a lexer that raises, or whose
tokens do not add up to its input, is ignored.

A code block shows the usual name of its language, or the name of its file if the fence gives one.
"""

import logging
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter

from pygments.lexers import find_lexer_class_by_name, get_all_lexers
from pygments.token import Comment, Generic, Keyword, Name, Number, String, string_to_tokentype
from pygments.token import _TokenType as TokenType

from conversations.domain.messages import say
from conversations.domain.text import write_json

from .messages import mark
from .programs import run_program
from .source_text import escape_attribute, escape_text

logger = logging.getLogger(__name__)
PLAIN_LANGUAGE = "text"
_UNHIGHLIGHTABLE = re.compile(r"^[^\n]{501}|(?<!\s)\s{201}", re.MULTILINE)
_LANGUAGE_WORD = re.compile(r"\s*([\w+#.-]{1,40})")
_FILE_NAME = re.compile(
    r"(?:title|file|filename|path)\s?=\s?(?:\"([^\"]{1,200})\"|'([^']{1,200})'|(\S{1,200}))"
    r"|^\s{0,3}[\w+#-]{1,40}:(\S{0,200}[\w-])|^\s{0,3}([\w./-]{0,200}[\w-]\.\w{1,10})(?!\S)"
)
_PLAIN_NAMES = {"", "text", "txt", "plain", "plaintext"}
MAX_INFO_CHARS = 300
MAX_OPEN_LINES = 60
"""Lines of code that a page shows without folding."""
MAX_CODE_CHARS = 10_000
"""Characters that are coloured in this process: a lexer can take quadratic time."""
MAX_COLOURED_CHARS = 100_000
"""Characters of a file that is shown in colours."""
DIAGRAM, DIAGRAM_LABEL = "mermaid", "Mermaid"
WRAP, DOWNLOAD, COPY = mark(say("Wrap")), mark(say("Download")), mark(say("Copy"))

_CLASSES: dict[TokenType, str] = {
    Comment: "c",
    Comment.Preproc: "k",
    Keyword: "k",
    Keyword.Constant: "m",
    Keyword.Type: "nc",
    Name.Attribute: "na",
    Name.Builtin: "nb",
    Name.Class: "nc",
    Name.Constant: "m",
    Name.Decorator: "nd",
    Name.Exception: "nc",
    Name.Function: "nf",
    Name.Tag: "nt",
    Name.Variable: "nv",
    Number: "m",
    String: "s",
    Generic.Deleted: "gd",
    Generic.Heading: "gh",
    Generic.Inserted: "gi",
    Generic.Output: "go",
    Generic.Prompt: "gp",
    Generic.Subheading: "gh",
}
# Classes of highlighted code. Each has its colour in app.css.
TOKEN_CLASSES = frozenset(_CLASSES.values())


def render_code_block(code: str, *, info: str = "", highlight: bool = True) -> str:
    """Return the HTML of a code block; ``info`` is the text after the opening fence."""
    info = info[:MAX_INFO_CHARS]
    language = find_language(info)
    body = highlight_code(code, language) if highlight else escape_text(code)
    lines = code.count("\n")
    opening = open_code_block(info, lines=lines if lines > MAX_OPEN_LINES else 0)
    return f"{opening}{body}{CODE_BLOCK_END}"


@lru_cache(maxsize=512)
def open_code_block(info: str, *, lines: int = 0) -> str:
    """Return the HTML of a code block up to the first character of its code.

    ``lines`` is the number of lines if there are so many that the page folds the block, else 0. The
    class ``rich`` marks blocks that need a JavaScript module of the page."""
    language, file_name = find_language(info), find_file_name(info)
    label = file_name or language_label(info)
    is_diagram = label == DIAGRAM_LABEL
    shown = escape_text(label)
    file_attribute = f' data-file="{escape_attribute(file_name)}"' if file_name else ""
    lines_attribute = f' data-lines="{lines}"' if lines else ""
    return (
        f'<div class="code{" rich" if is_diagram or lines else ""}"'
        f' data-lang="{DIAGRAM if is_diagram else escape_text(language)}"'
        f"{file_attribute}{lines_attribute}>"
        f'<div class="code-head"><span class="code-lang">{shown}</span>'
        '<button type="button" class="code-wrap" data-action="wrap-code"'
        f' aria-pressed="false">{WRAP}</button>'
        f'<button type="button" data-action="download-code">{DOWNLOAD}</button>'
        f'<button type="button" data-action="copy-code">{COPY}</button>'
        '</div><pre tabindex="0"><code class="hl">'
    )


CODE_BLOCK_END = "</code></pre></div>\n"


def find_language(info: str) -> str:
    """Return the first alias of the language that ``info`` names, or ``"text"``.

    The language is the first word of ``info``, or follows from the suffix of the file name in
    it."""
    word = _LANGUAGE_WORD.match(info)
    language = known_languages().get(word[1].lower()) if word else None
    if language:
        return language
    suffix = find_file_name(info).rpartition(".")[2].lower()
    return known_languages().get(suffix) or _languages_by_suffix().get(suffix, PLAIN_LANGUAGE)


def find_file_name(info: str) -> str:
    """Return the file name in a fence: ``python title="a.py"``, ``python:a.py`` or ``a.py``."""
    word = _LANGUAGE_WORD.match(info)
    if word and word.end() == len(info.rstrip()) and word[1].lower() in known_languages():
        return ""
    match = _FILE_NAME.search(info)
    return next(part for part in match.groups() if part) if match else ""


def language_label(info: str) -> str:
    """Return the language's usual name; for an unknown language, the word in the fence."""
    word = _LANGUAGE_WORD.match(info)
    language = find_language(info)
    if language == PLAIN_LANGUAGE:
        name = word[1] if word else ""
        if name.lower() == DIAGRAM:
            return DIAGRAM_LABEL
        return name if name.lower() not in _PLAIN_NAMES else "Text"
    return _language_names()[language]


@cache
def known_languages() -> dict[str, str]:
    """Return every alias that Pygments knows, with the first alias of the same lexer."""
    return {
        alias.lower(): aliases[0].lower()
        for _, aliases, _, _ in reversed(list(get_all_lexers(plugins=False)))
        for alias in aliases
    }


@cache
def _language_names() -> dict[str, str]:
    return {aliases[0].lower(): name for name, aliases, _, _ in get_all_lexers(False) if aliases}


@cache
def _languages_by_suffix() -> dict[str, str]:
    return {
        pattern.removeprefix("*."): aliases[0].lower()
        for _, aliases, patterns, _ in get_all_lexers(plugins=False)
        if aliases
        for pattern in patterns
    }


find_lexer = cache(find_lexer_class_by_name)


@lru_cache(maxsize=64)
def highlight_code(code: str, language: str) -> str:
    """Return the code as HTML with a span for each colour.

    Return it without spans if it has no known language, exceeds a limit, or makes the lexer
    fail."""
    plain = escape_text(code)
    if language == PLAIN_LANGUAGE or _UNHIGHLIGHTABLE.search(code):
        return plain
    try:
        lexer = find_lexer(language)(stripnl=False, ensurenl=False)
        return _colour(code, lexer.get_tokens(code))
    except Exception:
        fields = {"language": language}
        logger.warning("lexer_failed", exc_info=True, extra={"fields": fields})
        return plain


def highlight_file(codes: Iterable[str], language: str) -> dict[str, str]:
    """Return the HTML of each code text of a file, which may exceed ``MAX_CODE_CHARS``.

    Code stays plain if the lexer takes too long."""
    distinct = list(dict.fromkeys(codes))
    chars = sum(map(len, distinct))
    if chars <= MAX_CODE_CHARS:
        return {code: highlight_code(code, language) for code in distinct}
    html = {code: escape_text(code) for code in distinct}
    highlightable = [code for code in distinct if not _UNHIGHLIGHTABLE.search(code)]
    if highlightable and language != PLAIN_LANGUAGE and chars <= MAX_COLOURED_CHARS:
        lexer = find_lexer(language)
        request = write_json([lexer.__module__, lexer.__name__, highlightable])
        token_lists = run_program("lex_code.py", data=request.encode())
        for code, tokens in zip(highlightable, token_lists or (), strict=False):
            kinds = ((string_to_tokentype(kind), text) for kind, text in tokens)
            html[code] = _colour(code, kinds)
    return html


def _colour(code: str, kinds: Iterable[tuple[TokenType, str]]) -> str:
    tokens = [(_class_of(kind), text) for kind, text in kinds]
    if "".join(text for _, text in tokens) != code:
        return escape_text(code)
    html = ""
    for token_class, run in groupby(tokens, itemgetter(0)):
        escaped = escape_text("".join(text for _, text in run))
        html += f'<span class="{token_class}">{escaped}</span>' if token_class else escaped
    return html


@cache
def _class_of(kind: TokenType) -> str:
    """Return the class of the token type, or of its nearest parent that has one."""
    parents = [kind_above for kind_above in kind.split() if kind_above in _CLASSES]
    return _CLASSES[parents[-1]] if parents else ""
