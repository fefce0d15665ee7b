"""The text of answers that are still streaming, kept a few times a second."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection, transaction

from conversations.domain.text import storable
from conversations.models import DraftChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    run_pk: int
    ordinal: int
    part: int
    kind: str
    text: str


def append_draft_chunks(chunks: Sequence[Chunk]) -> None:
    """Keep pieces of any number of answers in one transaction. A piece that is there
    already stays as it is."""
    if not chunks:
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO conversations_draftchunk (run_id, ordinal, part, kind, text)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, ordinal) DO NOTHING",
            [(c.run_pk, c.ordinal, c.part, c.kind, storable(c.text)) for c in chunks],
        )


def read_draft(run_pk: int, *, after_ordinal: int = -1) -> list[Chunk]:
    """The kept pieces of a running answer, in order."""
    rows = DraftChunk.objects.filter(run=run_pk, ordinal__gt=after_ordinal).order_by("ordinal")
    return [
        Chunk(run_pk=run_pk, ordinal=ordinal, part=part, kind=kind, text=text)
        for ordinal, part, kind, text in rows.values_list("ordinal", "part", "kind", "text")
    ]
