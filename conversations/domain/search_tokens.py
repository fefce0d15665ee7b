"""The tokens of a text in the search index.

The same function reads turns and queries, so that their tokens match. Case and accents are folded.
English endings and irregular forms are reduced. Identifiers, paths and words with an apostrophe are
split into pieces: ``fitToContextWindow`` becomes ``fit to context window`` and the whole word.
Scripts without spaces between words become pairs of characters. A token consists of letters and
digits only, so every database accepts it unchanged.
"""

import re
import threading
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from Stemmer import Stemmer

ENGLISH = tomllib.loads(Path(__file__).with_name("english.toml").read_text())
STOP_WORDS = frozenset(ENGLISH["stop"].split())

# A form of a word → the form of the same word that is indexed.
IRREGULAR = {
    form: forms[0]
    for forms in map(str.split, reversed(ENGLISH["forms"].split(";")))
    for form in forms
}

VERSION = 5  # Increased if the same turn gives a different entry. Indexes are then rebuilt.

# The limit of a token's characters, and the number of pieces up to which the whole of a compound is
# a token as well.
MAX_TOKEN_CHARS, MAX_PIECES = 64, 8
MAX_CACHED_WORDS = 100_000

# Signs on or between letters that Python does not count as parts of a word.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u0610-\u061a\u064b-\u065f\u0670"
    "\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ecd\u102b-\u103e"
    "\u17b4-\u17d3\u3099\u309a"
)

# Scripts without spaces between words, and Korean, in which particles are attached to words.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3021-\u3029"
    "\u3031-\u3035\u3041-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)

# Within a word, these characters are invisible, or show where the word may be broken.
SOFT_HYPHEN = "\u00ad"
_JOINERS = f"{SOFT_HYPHEN}\u200b-\u200d\u2060"

_WORD = re.compile(rf"[\w{_MARKS}]+(?:(?:[.'’‐‑-]|(?<=\d),(?=\d)|[{_JOINERS}]+)[\w{_MARKS}]+)*")
_PLAIN = re.compile(r"[A-Z]?[a-z]+")
_OPTIONAL = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0640\u0670]"
)
# An apostrophe separates words (l'arbre, rock'n'roll), except before English endings (don't).
_DROPPED = re.compile(r"'(?:s\b|(?=(?:t|d|m|ll|re|ve)\b))|(?<=\d),(?=\d)", re.IGNORECASE)
_ASCII_PIECE = re.compile(r"[A-Z0-9]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_PIECE = re.compile(rf"(?P<dense>[{_DENSE}]+)|[a-z0-9]+|(?:(?![{_DENSE}a-z0-9_])[\w{_MARKS}])+")
_IS_DENSE = re.compile(f"[{_DENSE}]")
_RUNS = re.compile(rf"(?P<dense>[{_DENSE}]+)|[^{_DENSE}]+")
_local = threading.local()


def find_words(text: str) -> Iterator[re.Match[str]]:
    """Yield a match for each word of the text as written."""
    return _WORD.finditer(text)


def find_parts(text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield the start, end and tokens of each word in the text.

    In scripts without spaces, each pair of characters is a part of its own.
    """
    is_ascii = text.isascii()
    for word in _WORD.finditer(text):
        if is_ascii or _IS_DENSE.search(word.group()) is None:
            yield *word.span(), tokens_of_word(word.group())
            continue
        for run in _RUNS.finditer(word.group()):
            begin, end = word.start() + run.start(), word.start() + run.end()
            if run["dense"] is None or end - begin < 2:
                yield begin, end, tokens_of_word(run.group())
            else:
                for index in range(begin, end - 1):
                    yield index, index + 2, tokens_of_word(text[index : index + 2])


def read_tokens(text: str) -> list[str]:
    """Return the tokens of a text, in order."""
    return [token for word in _WORD.findall(text) for token in tokens_of_word(word)]


@lru_cache(maxsize=MAX_CACHED_WORDS)
def tokens_of_word(word: str) -> tuple[str, ...]:
    """Return the tokens of one word: its pieces, and then the whole if there are several."""
    if _PLAIN.fullmatch(word):
        return (_token(word.lower()),)
    word = _DROPPED.sub("", word.replace("’", "'"))
    if not word.isascii():
        bare = _OPTIONAL.sub("", unicodedata.normalize("NFKD", word))
        word = unicodedata.normalize("NFKC", bare).replace("ı", "i").casefold()
    if word.isascii():
        pieces = [piece.lower() for piece in _ASCII_PIECE.findall(word)]
        return _with_whole(pieces, "".join(pieces))
    pieces, has_dense = [], False
    for match in _PIECE.finditer(word):
        piece = match.group()
        if match["dense"] is not None:
            has_dense = True
            pieces += [piece[i : i + 2] for i in range(len(piece) - 1)] or [piece]
        else:
            pieces.append(piece)
    if has_dense:
        return tuple(_token(piece) for piece in pieces)
    return _with_whole(pieces, "".join(pieces))


def _with_whole(pieces: list[str], whole: str) -> tuple[str, ...]:
    if len(pieces) > MAX_PIECES:
        # The pieces of long hexadecimal or Base64 text are not searched for.
        return tuple(_token(piece) for piece in pieces) if len(whole) < 200 else (_token(whole),)
    tokens = [_token(piece) for piece in pieces]
    if len(pieces) > 1:
        tokens.append(_token(whole))
    return tuple(tokens)


def _token(piece: str) -> str:
    if len(piece) < 3 or not piece.isascii() or not piece.isalpha():
        return piece[:MAX_TOKEN_CHARS]
    # A stemmer is not thread-safe, so each thread has its own.
    stemmer: Stemmer | None = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer("english", 0)
    return str(stemmer.stemWord(IRREGULAR.get(piece, piece)))[:MAX_TOKEN_CHARS]
