"""Search by meaning: vectors of turns by a model of the extra ``semantic``.

Messages of a person, and answers as short as these, have a vector each. Vectors are made in the
background after the turns' words are indexed, and stored beside the index. Without the extra, or
with ``LOOM_SEMANTIC=off``, there are no vectors, and a search uses words alone. The same is true
for turns that have no vector yet.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import connection, transaction

from conversations.domain.turns import ASSISTANT, USER
from conversations.models import SearchProgress, Turn, TurnEmbedding
from conversations.models.search import UNEMBEDDED, entry_id, session_rows

from .matching import TURN_MASK

if TYPE_CHECKING:
    from .embedding import Similarities, VectorMatrix

# Texts of one batch, which take a third of a second of one processor, and turns that are read to
# find them.
TEXTS_AT_ONCE, MAX_TURNS_READ = 16, 1000

# Words of an answer. A longer answer gets no vector, because it is about many things, unlike a
# message.
MAX_ANSWER_WORDS = 60

# Vectors of one session that are compared (the newest), and vectors of all sessions that are kept
# in memory. Each takes 384 bytes.
MAX_VECTORS, MAX_CACHED_VECTORS = 100_000, 200_000

MIN_KNOWN_SHARE = 0.5  # The share of Latin letters in a text, below which the model cannot read it.


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBatch:
    """The turns after ``embedded_turn`` up to ``last``, and the texts that get a vector."""

    session_pk: int
    embedded_turn: int
    last: int
    texts: Mapping[int, str]


def is_used() -> bool:
    return settings.LOOM.embedding_model is not None


def load_embedding() -> ModuleType:
    """Return the module ``embedding``, the only one that imports numpy."""
    # numpy reads this when it is imported. With a thread for each processor, the threads wait for
    # each other in loops, and on a busy machine a text takes twenty times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from . import embedding

    return embedding


def read_batch(session_pk: int | None = None) -> EmbeddingBatch | None:
    """Return the next turns without vectors, or None if there are none.

    They are turns of the given session, or of the newest session that has any."""
    behind = SearchProgress.objects.filter(UNEMBEDDED).order_by("-session")
    if session_pk is not None:
        behind = behind.filter(session=session_pk)
    row = behind.values_list("pk", "embedded_turn", "indexed_turn").first()
    if row is None:
        return None
    pk, embedded, indexed = row
    last = min(indexed, embedded + MAX_TURNS_READ)
    texts = dict(islice(read_messages(pk, first=embedded + 1, last=last), TEXTS_AT_ONCE))
    last = max(texts) if len(texts) == TEXTS_AT_ONCE else last
    return EmbeddingBatch(session_pk=pk, embedded_turn=embedded, last=last, texts=texts)


def read_messages(session_pk: int, *, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Yield the numbers and texts of the turns that get a vector."""
    turns = Turn.objects.filter(
        session=session_pk, number__range=(first, last), role__in=(USER, ASSISTANT)
    )
    rows = turns.order_by("number").values_list("number", "role", "content")
    for number, role, content in rows.iterator(TEXTS_AT_ONCE):
        is_short = len(content.split(maxsplit=MAX_ANSWER_WORDS)) <= MAX_ANSWER_WORDS
        if is_readable(content) and (role == USER or is_short):
            yield number, content


def is_readable(text: str) -> bool:
    letters = [character for character in text[:1000] if character.isalpha()]
    latin = sum(character < "\u0250" for character in letters)
    return bool(letters) and latin >= MIN_KNOWN_SHARE * len(letters)


def embed_texts(texts: Iterable[str]) -> list[bytes]:
    embed = load_embedding().embed
    return [embed(text) for text in texts]


def store_embeddings(batch: EmbeddingBatch, vectors: Sequence[bytes]) -> bool:
    """Store the vectors of a batch.

    Return False and store nothing if another process has stored them or the session was purged."""
    with transaction.atomic():
        rows = SearchProgress.objects.filter(session=batch.session_pk)
        if not rows.filter(embedded_turn=batch.embedded_turn).update(embedded_turn=batch.last):
            return False
        TurnEmbedding.objects.bulk_create(
            TurnEmbedding(
                pk=entry_id(batch.session_pk, number), session_id=batch.session_pk, vector=vector
            )
            for number, vector in zip(batch.texts, vectors, strict=True)
        )
    return True


def embed_waiting(session_pk: int | None = None) -> int:
    """Make all missing vectors of one session or of all, and return their number.

    Commands call this. A server makes vectors in the background."""
    count = 0
    while is_used() and (batch := read_batch(session_pk)) is not None:
        vectors = embed_texts(batch.texts.values())
        if store_embeddings(batch, vectors):
            count += len(vectors)
    return count


def forget_session(session_pk: int) -> None:
    """Remove a session's vectors, so that they are made again. Call it within a transaction."""
    SearchProgress.objects.filter(session=session_pk).update(embedded_turn=0)
    session_rows(TurnEmbedding, session_pk)._raw_delete(connection.alias)


def check_session(session_pk: int) -> str:
    """Return what is wrong with a session's vectors, or an empty text if they are correct.

    Turns whose vectors have not been made yet do not count as wrong."""
    progress = SearchProgress.objects.filter(session=session_pk).first()
    end = progress.embedded_turn if progress else 0
    expected = {number for number, _ in read_messages(session_pk, first=1, last=end)}
    stored = {
        pk & TURN_MASK
        for pk in session_rows(TurnEmbedding, session_pk).values_list("pk", flat=True)
    }
    different = expected ^ stored
    if different:
        number = min(different)
        return f"turn {number} has {'no vector' if number in expected else 'a vector too many'}"
    return ""


# By session, with the one that was searched last at the end. The matrices are never changed.
_cached: OrderedDict[int, "VectorMatrix"] = OrderedDict()
_cache_lock = Lock()


def find_similar(session_pk: int, text: str, *, low: int, high: int) -> "Similarities | None":
    """Return how similar a session's entries from ``low`` to ``high`` are to the text in meaning.

    Entries without a vector are left out. Return None if no entry can be compared, so that the
    search has to use words alone."""
    # ``high`` is 0 on a page that continues a page without vectors.
    if high < low or not (is_used() and is_readable(text)):
        return None
    matrix = _read_matrix(session_pk)
    if matrix is None:
        return None
    similarities = matrix.compare(load_embedding().embed(text), low=low, high=high)
    return similarities if len(similarities.ids) else None


_SELECT = (
    f"SELECT id, vector FROM {TurnEmbedding._meta.db_table} WHERE id > %s AND id < %s"
    " ORDER BY id DESC LIMIT %s"
)


def _read_matrix(session_pk: int) -> "VectorMatrix | None":
    """Return a session's vectors, reading only those that are new since the last call."""
    with _cache_lock:
        matrix = _cached.get(session_pk)
    last_id = int(matrix.ids[-1]) if matrix is not None else entry_id(session_pk, 0)
    with connection.cursor() as cursor:
        cursor.execute(_SELECT, [last_id, entry_id(session_pk + 1, 0), MAX_VECTORS])
        later: VectorMatrix = load_embedding().VectorMatrix.read(cursor)
    if len(later.ids):
        matrix = later if matrix is None else matrix.extended(later, limit=MAX_VECTORS)
    if matrix is not None:
        with _cache_lock:
            _cached[session_pk] = matrix
            _cached.move_to_end(session_pk)
            while sum(len(cached.ids) for cached in _cached.values()) > MAX_CACHED_VECTORS:
                _cached.popitem(last=False)
    return matrix
