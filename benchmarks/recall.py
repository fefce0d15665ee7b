"""Measure how much of the evidence a search finds: ``python -m benchmarks.recall CHATS…``

``CHATS`` are folders with BEAM's chats and files with LoCoMo's (:mod:`benchmarks.chats`). They are
imported into a separate installation, with the same functions by which the server writes turns.
Each question is searched for as by ``conversation_recall``. ``--data`` keeps the installation for
the next run.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from .processes import clean_environment

if TYPE_CHECKING:
    from .chats import Chat

DEPTHS = (5, 10, 25, 50)  # numbers of hits; ``--parts`` uses the second
BATCH_TURNS = 100

# (group, kind) of questions → for each question the shares of its evidence among the first DEPTHS
# hits.
type Shares = Mapping[tuple[str, str], Sequence[tuple[float, ...]]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.recall", description=__doc__)
    parser.add_argument("chats", nargs="+", type=Path, metavar="CHATS")
    parser.add_argument("--only", choices=("odd", "even"), default="", help="half of BEAM's chats")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the installation there")
    parser.add_argument(
        "--without", action="append", default=[], metavar="PART", help="switch a part off"
    )
    parser.add_argument(
        "--parts", action="store_true", help="a table of what each part of the ranking is worth"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each question's hits")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="loom-recall-") as folder:
        _prepare(options.data or Path(folder))
        from .chats import read_chats

        chats = [chat for path in options.chats for chat in read_chats(path, only=options.only)]
        sessions = import_chats(chats)
        if unknown := set(options.without) - set(_parts()):
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(_parts())}")
        if options.parts:
            print_parts(chats, sessions)
            return
        with _without(options.without):
            found = ask(chats, sessions)
    print(format_shares(rate(chats, found)))
    if options.json:
        rows = [
            [chat.name, question.text, question.kind, sorted(question.evidence), hits]
            for chat, answers in zip(chats, found, strict=True)
            for question, hits in zip(chat.questions, answers, strict=True)
        ]
        options.json.write_text(json.dumps(rows))


def _prepare(data_dir: Path) -> None:
    """Make this process use the installation in a folder. Create it if there is none."""
    environment = clean_environment({"LOOM_DATA_DIR": str(data_dir.resolve())})
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    data_dir.mkdir(parents=True, exist_ok=True)
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def import_chats(chats: Iterable["Chat"]) -> dict[str, int]:
    """Import the chats that are not imported yet. Return the sessions' keys by the chats' names."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from conversations.archive.append import append
    from conversations.archive.sessions import create_session
    from conversations.models import Session, Workspace
    from conversations.search.indexing import index_waiting
    from conversations.search.meaning import embed_waiting

    owner, _ = User.objects.get_or_create(username="recall")
    root = Path(os.environ["LOOM_DATA_DIR"]) / "workspace"
    workspace, _ = Workspace.objects.get_or_create(
        slug="recall", defaults={"name": "Recall", "root": str(root), "created_at": timezone.now()}
    )
    known = dict(Session.objects.filter(workspace=workspace).values_list("uuid", "pk"))
    sessions = {}
    for chat in chats:
        uuid = _uuid_of(chat)
        if uuid not in known:
            session = create_session(workspace, owner=owner, uuid=uuid, title=chat.name)
            for turns in batched(chat.turns, BATCH_TURNS, strict=False):
                append(session.pk, session_uuid=uuid, turns=turns)
            known[uuid] = session.pk
        sessions[chat.name] = known[uuid]
    index_waiting()
    embed_waiting()
    return sessions


def _parts() -> dict[str, dict[str, object]]:
    """Return for each part of the ranking the constants that switch it off, with their values."""
    return {
        "who spoke": {"source.MAX_WORDINESS": 1.0},
        "neighbours": {"ranking.NEIGHBOUR_SHARES": (), "ranking.INNER_NEIGHBOUR_SHARES": ()},
        "farther neighbours": {"best.DISTANCE_EXPONENT": 0.0},
        "words that are everywhere": {"ranking.COMMON_SHARE": 1.0},
        "length": {"ranking.LENGTH_WEIGHT": 0.0},
        "replies": {"best.REPLY_WEIGHT": 1.0},
        "rules": {"best.RULE_WEIGHT": 0.0},
        "words without a subject": {"best.LIGHT_WEIGHT": 0.0},
        "answers in summaries": {"best.SUMMARY": frozenset()},
        "spread": {"best.COURSE": frozenset()},
        "dates": {"best.DATE_WEIGHT": 1.0},
        "recency": {"best.RECENCY_WEIGHT": 0.0},
        "meaning": {"best.MEANING_WEIGHT": 0.0, "best.MIN_SIMILARITY": 2.0},
    }


@contextmanager
def _without(parts: Iterable[str]) -> Iterator[None]:
    """Switch these parts of the ranking off while the context is open."""
    kept = []
    for name, value in [item for part in parts for item in _parts()[part].items()]:
        module_name, constant = name.split(".")
        module = import_module(f"conversations.search.{module_name}")
        kept.append((module, constant, getattr(module, constant)))
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in reversed(kept):
            setattr(module, constant, value)


def print_parts(chats: Sequence["Chat"], sessions: Mapping[str, int]) -> None:
    """Print R@10 with all parts, and the loss without each part."""
    groups = sorted({chat.group for chat in chats})
    print("| without | " + " | ".join(groups) + " |\n| --- |" + " --- |" * len(groups))
    whole: list[float] = []
    for part in ("", *_parts()):
        with _without([part] if part else []):
            shares = rate(chats, ask(chats, sessions))
        found = [_mean([row[1] for row in shares[group, ""]]) for group in groups]
        whole = whole or found
        cells = [f"{now:.3f} ({now - then:+.3f})" for now, then in zip(found, whole, strict=True)]
        print(f"| {part or 'nothing'} | " + " | ".join(cells) + " |", flush=True)


def _uuid_of(chat: "Chat") -> UUID:
    """Return a UUID from all imported data, so that a changed import gets a new session."""
    return uuid5(NAMESPACE_URL, repr((chat.name, chat.turns)))


def ask(chats: Iterable["Chat"], sessions: Mapping[str, int]) -> list[list[list[int]]]:
    """Return for each question of each chat the numbers of the turns found, the best first."""
    from conversations.search.find import search_session
    from conversations.search.query import parse_query

    return [
        [
            [
                hit.turn
                for hit in search_session(
                    sessions[chat.name],
                    parse_query(question.text),
                    limit=DEPTHS[-1],
                    with_neighbours=True,
                ).hits
            ]
            for question in chat.questions
        ]
        for chat in chats
    ]


def rate(chats: Iterable["Chat"], found: Iterable[Sequence[Sequence[int]]]) -> Shares:
    shares = defaultdict(list)
    for chat, answers in zip(chats, found, strict=True):
        for question, hits in zip(chat.questions, answers, strict=True):
            evidence = question.evidence
            row = tuple(len(evidence.intersection(hits[:k])) / len(evidence) for k in DEPTHS)
            shares[chat.group, question.kind].append(row)
            shares[chat.group, ""].append(row)
    return shares


def format_shares(shares: Shares) -> str:
    heads = "".join(f"{f'R@{depth}':>8}" for depth in DEPTHS)
    lines = [f"{'':<36}{'questions':>9}{heads}"]
    for (group, kind), rows in sorted(shares.items()):
        figures = "".join(f"{_mean(column):>8.3f}" for column in zip(*rows, strict=True))
        lines.append(f"{group if not kind else f'  {kind}':<36}{len(rows):>9}{figures}")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
