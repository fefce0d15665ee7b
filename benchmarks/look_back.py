"""Measure what a model finds outside its window: ``python -m benchmarks.look_back CHATS…``

``CHATS`` and ``--data`` are the same as for :mod:`benchmarks.recall`. There are two figures:

- **calls**: The questions are sent to ``conversation_recall``. A script that does not know the
  evidence then follows the offers in the output literally. The figure is the share of questions
  with any, and with all, of their evidence quoted after one, two and three calls.
- **hint**: The questions are sent as messages while only the last turns are in the window. The
  figures are how often the hint names turns, how often it names any of the evidence, and how often
  it appears on messages that need no old turns (``idle_messages.txt``).
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .recall import _prepare, import_chats

if TYPE_CHECKING:
    from conversations.agent.tools.tool import ToolContext

    from .chats import Chat

MAX_CALLS = 3
WINDOW_TURNS = 20  # last turns of a chat that are in the window
IDLE_MESSAGES = Path(__file__).with_name("idle_messages.txt")
QUOTATION_END = "</archive_quotation>"

type Arguments = dict[str, Any]
type Policy = Callable[[Arguments, str], Arguments | None]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.look_back", description=__doc__)
    parser.add_argument("chats", nargs="+", type=Path, metavar="CHATS")
    parser.add_argument("--only", choices=("odd", "even"), default="", help="half of BEAM's chats")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the installation there")
    parser.add_argument("--figure", choices=("calls", "cursor", "hint"), action="append")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="loom-look-back-") as folder:
        _prepare(options.data or Path(folder))
        from .chats import read_chats

        chats = [chat for path in options.chats for chat in read_chats(path, only=options.only)]
        sessions = import_chats(chats)
        for figure in options.figure or ("calls", "hint"):
            if figure == "hint":
                measure_hint(chats, sessions)
            else:
                measure_calls(chats, sessions, take_offer if figure == "calls" else take_cursor)


def measure_calls(chats: Iterable["Chat"], sessions: Mapping[str, int], policy: Policy) -> None:
    """Print the shares of questions with any and with all of their evidence quoted."""
    rows = defaultdict(list)
    for chat in chats:
        for question in chat.questions:
            with asking(sessions[chat.name], question.text) as context:
                seen = list(follow(context, question.text, policy))
            row = [(bool(q & question.evidence), question.evidence <= q) for q in seen]
            rows[chat.group].append(row)
    print(f"{'':<8}{'questions':>10}" + "".join(f"{f'after {n}: any, all':>22}" for n in (1, 2, 3)))
    for group, found in sorted(rows.items()):
        cells = ""
        for step in zip(*found, strict=True):
            shares = [sum(column) / len(found) for column in zip(*step, strict=True)]
            cells += f"{f'{shares[0]:.3f} {shares[1]:.3f}':>22}"
        print(f"{group:<8}{len(found):>10}{cells}")


@contextmanager
def asking(session_pk: int, text: str) -> Iterator["ToolContext"]:
    """Append the message to the session while the context is open, and yield a ToolContext."""
    from django.db import transaction

    from conversations.agent.tools.tool import ToolContext
    from conversations.archive.append import append
    from conversations.domain.tool_calls import ToolScope
    from conversations.domain.turns import NewTurn
    from conversations.models import Session

    async def read(function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    with transaction.atomic():
        session = Session.objects.get(pk=session_pk)
        append(session_pk, session_uuid=session.uuid, turns=[NewTurn(role="user", content=text)])
        yield ToolContext(
            session_pk=session_pk,
            session=session.uuid,
            user_pk=session.owner_id,
            call_turn=session.next_turn,
            root=Path(),
            read=read,
            write=read,
            scope=ToolScope(workspace="recall", policy="ask"),
            run_pk=0,
            call_pk=0,
        )
        transaction.set_rollback(True)


def follow(context: "ToolContext", question: str, policy: Policy) -> Iterator[set[int]]:
    """Yield after each call the turns that have been quoted so far."""
    arguments: Arguments | None = {"action": "search", "query": question}
    seen: set[int] = set()
    for _ in range(MAX_CALLS):
        if arguments:
            output = call_recall(context, arguments)
            seen |= quoted_turns(output)
            arguments = policy(arguments, output)
        yield set(seen)


def call_recall(context: "ToolContext", arguments: Arguments) -> str:
    from conversations.agent.recall.tool import TOOL

    # The tool does not wait for anything here, so it needs no event loop and no thread.
    try:
        next(TOOL.run(context, arguments).__await__())
    except StopIteration as done:
        return str(done.value.output)
    raise AssertionError("The tool waits for something.")


def quoted_turns(output: str) -> set[int]:
    """Return the turns of which the output quotes any text."""
    found = set[int]()
    turn = 0
    for line in output.splitlines():
        if head := re.match(r"\[Turn (\d+)\]", line):
            turn = int(head[1])
        elif line.startswith("  ") and not re.fullmatch(r"  \[[\d,]+ characters; range .*\]", line):
            found.add(turn)
    return found


def take_offer(arguments: Arguments, output: str) -> Arguments | None:
    """Follow the first offer, then its cursor, and the next offer if there is no cursor."""
    if "only" in arguments and (taken := take_cursor(arguments, output)):
        return taken
    offer = re.search(r"^- ([^:]+): ", output.rpartition(QUOTATION_END)[2], re.MULTILINE)
    if offer is None:
        return None
    kept = {name: value for name, value in arguments.items() if name != "cursor"}
    return kept | dict(re.findall(r'(\w+)="?([^",]+)"?', offer[1]))


def take_cursor(arguments: Arguments, output: str) -> Arguments | None:
    cursor = re.search(r'^More: .* cursor="([^"]+)"\.$', output, re.MULTILINE)
    return {**arguments, "cursor": cursor[1]} if cursor else None


def measure_hint(chats: Iterable["Chat"], sessions: Mapping[str, int]) -> None:
    """Print how often the hint appears, and how often it names evidence."""
    from conversations.agent.window.related_turns import find_hint

    idle = IDLE_MESSAGES.read_text().splitlines()
    asked, unasked = defaultdict(list), defaultdict(list)
    for chat in chats:
        session_pk, turn = sessions[chat.name], len(chat.turns) + 1
        floor = max(2, turn - WINDOW_TURNS)
        for question in chat.questions:
            if evidence := {number for number in question.evidence if number < floor}:
                hint = find_hint(session_pk, question.text, floor=floor, turn=turn)
                named = set(map(int, re.findall(r"\d+", hint)))
                asked[chat.group].append((bool(hint), bool(named & evidence)))
        for text in idle:
            hint = find_hint(session_pk, text, floor=floor, turn=turn)
            unasked[chat.group].append(bool(hint))
    heads = ("questions", "speaks", "evidence named", "idle messages", "speaks")
    print(f"{'':<8}" + "".join(f"{head:>16}" for head in heads))
    for group, found in sorted(asked.items()):
        speaks, named = (sum(column) / len(found) for column in zip(*found, strict=True))
        others = unasked[group]
        share = sum(others) / len(others)
        figures = f"{len(found):>16}{speaks:>16.3f}{named:>16.3f}{len(others):>16}{share:>16.3f}"
        print(f"{group:<8}{figures}")


if __name__ == "__main__":
    main()
