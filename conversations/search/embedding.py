"""Embedding of texts as vectors, by the model all-MiniLM-L6-v2 with numpy alone.

The model is a BERT of six layers (Devlin et al., 2019) whose last layer's vectors are averaged
(Reimers and Gurevych, 2019). Its weights and its vocabulary are data files of a package of the
extra ``semantic``, byte for byte the same as the original's. No code of that package is run. Import
this module only by :func:`conversations.search.meaning.load_embedding`.
"""

import json
import math
import mmap
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

DIMENSIONS, HEADS, LAYERS, EPSILON = 384, 12, 6, 1e-12

# The model was trained on texts of up to 128 tokens and accepts 256. The beginning of a message
# says what it is about.
MAX_TOKENS, MAX_CHARS, MAX_WORD_CHARS = 256, 4000, 100

# Components of unit vectors are stored as multiples of 1/SCALE. Of 384 components, none is much
# above 0.25. The similarity of two texts is off by less than .005.
SCALE = 400

BLOCK_VECTORS = 1024  # As floats they fit into a processor's cache.

type Floats = NDArray[np.float32]


def embed(text: str) -> bytes:
    """Return the vector of a text as DIMENSIONS signed bytes."""
    vector = np.rint(_model().embed(_read_tokens(text)) * SCALE)
    return vector.clip(-127, 127).astype(np.int8).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class VectorMatrix:
    """Vectors of turns by the ids of their entries, in ascending order."""

    ids: NDArray[np.int64]
    vectors: NDArray[np.int8]

    @classmethod
    def read(cls, rows: Iterable[tuple[int, bytes]]) -> Self:
        """Return the matrix of rows that are ordered with the latest first."""
        ids, vectors = array("q"), bytearray()
        for pk, vector in rows:
            ids.append(pk)
            vectors += vector
        matrix = np.frombuffer(vectors, np.int8).reshape(-1, DIMENSIONS)
        return cls(np.array(ids)[::-1].copy(), matrix[::-1].copy())

    def extended(self, later: Self, *, limit: int) -> Self:
        """Return a matrix with later vectors added; if it exceeds ``limit``, drop the earliest."""
        ids = np.concatenate((self.ids, later.ids))
        vectors = np.concatenate((self.vectors, later.vectors))
        return replace(self, ids=ids[-limit:], vectors=vectors[-limit:])

    def compare(self, vector: bytes, *, low: int, high: int) -> "Similarities":
        """Compare a vector with those of the entries from ``low`` to ``high``."""
        first, end = np.searchsorted(self.ids, (low, high + 1)).tolist()
        query = np.frombuffer(vector, np.int8).astype(np.float32) / SCALE**2
        similarities = np.empty(end - first, np.float32)
        for start in range(first, end, BLOCK_VECTORS):
            block = self.vectors[start : min(end, start + BLOCK_VECTORS)].astype(np.float32)
            np.dot(block, query, out=similarities[start - first :][: len(block)])
        return Similarities(self.ids[first:end], similarities)


@dataclass(frozen=True, slots=True, eq=False)
class Similarities:
    """The similarities of entries to a text, as cosines."""

    ids: NDArray[np.int64]
    values: Floats

    @property
    def last(self) -> int:
        return int(self.ids[-1])

    def best(self, count: int, *, min_similarity: float = -1.0) -> list[int]:
        """Return the ids of the most similar entries, in no particular order.

        There are at most ``count``, each with a similarity of at least ``min_similarity``."""
        chosen = np.argpartition(self.values, -min(count, len(self.ids)))[-count:]
        return list(self.ids[chosen[self.values[chosen] >= min_similarity]].tolist())

    def of(self, ids: Iterable[int]) -> dict[int, float]:
        """Return the similarities of these entries, at least 0; skip entries without a vector."""
        wanted_ids = np.array(list(ids), np.int64)
        indexes = np.searchsorted(self.ids, wanted_ids).clip(max=len(self.ids) - 1)
        has_vector = self.ids[indexes] == wanted_ids
        values = self.values[indexes[has_vector]].clip(min=0)
        return dict(zip(wanted_ids[has_vector].tolist(), values.tolist(), strict=True))


class _Model:
    """The model's weights by their original names.

    The word embeddings stay in the file, because a text needs few of them. The matrices of the
    encoder are transposed, which halves the time for a question."""

    def __init__(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = np.frombuffer(mapped, np.uint8, offset=8 + size)
        self._weights: dict[str, Floats] = {}
        for name, entry in header.items():
            if entry.get("dtype") == "F32":
                first, end = entry["data_offsets"]
                weights = data[first:end].view(np.float32).reshape(entry["shape"])
                is_matrix = name.startswith("encoder.") and weights.ndim == 2
                self._weights[name] = np.ascontiguousarray(weights.T) if is_matrix else weights
        if hasattr(mmap, "MADV_DONTNEED"):
            # The matrices that were copied need not stay in memory twice.
            mapped.madvise(mmap.MADV_DONTNEED)

    def embed(self, tokens: list[int]) -> Floats:
        """Return the unit vector of the tokens."""
        table = self._weights
        x = table["embeddings.word_embeddings.weight"][tokens]
        x = x + table["embeddings.position_embeddings.weight"][: len(tokens)]
        x += table["embeddings.token_type_embeddings.weight"][0]
        x = self._normalise(x, "embeddings.LayerNorm")
        for number in range(LAYERS):
            x = self._run_layer(x, f"encoder.layer.{number}")
        mean: Floats = x.mean(0)
        return mean / np.linalg.norm(mean)

    def _run_layer(self, x: Floats, name: str) -> Floats:
        query, key, value = (
            self._apply(x, f"{name}.attention.self.{part}").reshape(len(x), HEADS, -1)
            for part in ("query", "key", "value")
        )
        scores: Floats = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0)
        scores *= np.float32(math.sqrt(HEADS / DIMENSIONS))
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        attended: Floats = (scores @ value.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(x.shape)
        attended = self._apply(attended, f"{name}.attention.output.dense") + x
        x = self._normalise(attended, f"{name}.attention.output.LayerNorm")
        inner = _gelu(self._apply(x, f"{name}.intermediate.dense"))
        return self._normalise(
            self._apply(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm"
        )

    def _apply(self, x: Floats, name: str) -> Floats:
        result: Floats = x @ self._weights[f"{name}.weight"]
        result += self._weights[f"{name}.bias"]
        return result

    def _normalise(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON))
        x *= self._weights[f"{name}.weight"]
        x += self._weights[f"{name}.bias"]
        return x


def _gelu(x: Floats) -> Floats:
    """GELU by the hyperbolic tangent, because numpy has no error function: off by .0005 at most."""
    inner = x * x
    inner *= np.float32(0.044715)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(math.sqrt(2 / math.pi))
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.5)
    return inner


def _folder() -> Path:
    folder: Path | None = settings.LOOM.embedding_model
    if folder is None:
        raise RuntimeError("there is no model")  # Callers check ``meaning.is_used`` first.
    return folder


@cache
def _model() -> _Model:
    return _Model(_folder())


@cache
def _vocabulary() -> dict[str, int]:
    lines = (_folder() / "vocab.txt").read_text().splitlines()
    return {piece: number for number, piece in enumerate(lines)}


class _CharacterMap(dict[int, str]):
    """A map for :meth:`str.translate` that treats characters like BERT's uncased tokenizer."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] == "Z" or character in "\t\n\r":
            spaced = " "
        elif category in {"Mn", "Cc", "Cf", "Co"} or character == "\ufffd":
            spaced = ""
        elif category[0] == "P" or (code < 0x7F and not character.isalnum()) or _is_han(code):
            spaced = f" {character} "
        else:
            spaced = character
        self[code] = spaced
        return spaced


_SPACING = _CharacterMap()


def _is_han(code: int) -> bool:
    return 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x2FA1F


def _read_tokens(text: str) -> list[int]:
    """Split a text into tokens by WordPiece (Wu et al., 2016).

    Each word is split from its start into the longest pieces that the vocabulary has."""
    vocabulary = _vocabulary()
    plain = unicodedata.normalize("NFD", text[:MAX_CHARS]).translate(_SPACING).lower()
    pieces = [piece for word in plain.split() for piece in _split_word(word)]
    return [vocabulary["[CLS]"], *pieces[: MAX_TOKENS - 2], vocabulary["[SEP]"]]


@lru_cache(maxsize=20_000)
def _split_word(word: str) -> tuple[int, ...]:
    vocabulary = _vocabulary()
    pieces: list[int] = []
    start = 0 if len(word) <= MAX_WORD_CHARS else len(word)
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if f"{prefix}{word[start:end]}" in vocabulary), 0)
        if not end:
            pieces.clear()
            break
        pieces.append(vocabulary[f"{prefix}{word[start:end]}"])
        start = end
    return tuple(pieces) or (vocabulary["[UNK]"],)
