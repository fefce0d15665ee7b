"""A script that kills a process with SIGKILL during tool calls and during approvals.

Then another process starts on the same data. No tool may run twice, every call must end once,
calls that wait for a decision must go on waiting, and the session must go on.

``python -m tests.crash.kill_tools --rounds 100`` plays the random stories 100 times.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.crash.scripts import Ground, prepared
from tests.crash.scripts import conclude as conclude_script
from tests.crash.undo_stories import while_a_command_changes_files, while_files_are_written
from tests.starting import Forked

if TYPE_CHECKING:
    from conversations.models import Run, Session, ToolCall

SECONDS = 60.0


@dataclass(slots=True)
class Field:
    """The process that works on the data, and functions for the stories."""

    ground: Ground
    random: Random
    process: Forked | None = None
    problems: list[str] = field(default_factory=list)
    kills: int = 0
    before_kill: Callable[[], None] | None = None
    """Called in this process while the other one is stopped, before the kill."""

    def start(self) -> None:
        self.process = self.ground.start_module("tests.crash.tool_process")
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        if self.process is None:
            return
        before_kill, self.before_kill = self.before_kill, None
        try:
            if before_kill is not None:
                self.do_while_it_stands_still(self.process.pid, before_kill)
        finally:
            self.process.kill()
            self.process.communicate()
            self.process = None
            self.kills += 1

    def do_while_it_stands_still(self, pid: int, work: Callable[[], None]) -> None:
        """Stop the process and do the work meanwhile.

        This process opens a transaction first, because a stopped process would never release
        the database.
        """
        from django.db import transaction

        with transaction.atomic():
            os.kill(pid, signal.SIGSTOP)
            self.wait("it stands still", lambda: state_of(pid) == "T")
            work()

    def new_session(self, policy: str) -> "Session":
        from django.contrib.auth.models import User

        from conversations.archive.sessions import create_session
        from conversations.archive.workspaces import change_tool_rules, create_workspace

        name = f"story-{uuid4().hex[:8]}"
        root = self.ground.folder / "workspaces" / name
        root.mkdir(parents=True)
        owner, _ = User.objects.get_or_create(username="ann")
        workspace = create_workspace(root=root, name=name, owner=owner)
        change_tool_rules(workspace, tool_policy=policy, allows_network=False)
        workspace.refresh_from_db()
        return create_session(workspace, owner=owner)

    def say(self, session: "Session", directive: str) -> "Run":
        """Enqueue a message for the process that is running or that starts next."""
        from conversations.archive.messages import accept_message
        from conversations.models import Run

        accepted = accept_message(
            session,
            client_id=uuid4().hex,
            text=f"[[wire: {directive}]]",
            user_pk=session.owner_id,
            max_queued=9,
        )
        return Run.objects.get(pk=accepted.run_pk)

    def allow(self, session: "Session") -> None:
        """Allow the call that waits, from this process instead of the one that runs it."""
        from conversations.archive.tool_calls import decide_call

        [call] = [call for call in calls_of(session) if call.state == "waiting_approval"]
        decide_call(session, call=call.uuid, decision="once", user_pk=session.owner_id)

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        end = monotonic() + SECONDS
        while not condition():
            if monotonic() > end:
                raise TimeoutError(what)
            sleep(0.01)

    def wait_state(self, run: "Run", *states: str) -> None:
        def reached() -> bool:
            run.refresh_from_db()
            return run.state in states

        self.wait(f"the run is {states}", reached)

    def expect(self, what: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            self.problems.append(f"{what}: {found!r} and not {wanted!r}")


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def calls_of(session: "Session") -> "list[ToolCall]":
    from conversations.models import ToolCall

    return list(ToolCall.objects.filter(session=session).order_by("pk"))


def results_of(session: "Session") -> list[str]:
    from conversations.models import Turn

    turns = Turn.objects.filter(session=session, role="tool").order_by("number")
    return list(turns.values_list("content", flat=True))


def done_in(session: "Session") -> list[str]:
    from tests.runtime.sample_tools import witness

    return witness(Path(session.workspace.root))


def until_asked(field: Field, session: "Session", run: "Run") -> None:
    field.wait_state(run, "waiting_approval")


type Story = Generator[None, None, Session]
"""A story. Each ``yield`` is a kill with a restart."""


def while_a_tool_runs(field: Field) -> "Story":
    session = field.new_session("auto")
    run = field.say(session, "tool=work")
    field.wait("it begins", lambda: done_in(session))
    yield
    field.wait_state(run, "interrupted")
    field.expect("done", done_in(session), ["begin "])
    field.expect("state", [call.state for call in calls_of(session)], ["interrupted"])
    [result] = results_of(session)
    field.expect("words", result.partition(";")[0], "The server stopped during this call")
    return session


def while_an_approval_waits(field: Field) -> "Story":
    session = field.new_session("ask")
    run = field.say(session, 'tool=add input={"line": "beans"}')
    until_asked(field, session, run)
    for _ in range(2):
        yield
        sleep(0.5)
        until_asked(field, session, run)
    field.expect("nothing is done", done_in(session), [])
    field.allow(session)
    field.wait_state(run, "completed")
    field.expect("done", done_in(session), ["beans"])
    return session


def between_decision_and_execution(field: Field) -> "Story":
    session = field.new_session("ask")
    run = field.say(session, 'tool=add input={"line": "beans"}')
    until_asked(field, session, run)
    field.before_kill = lambda: field.allow(session)
    yield
    field.wait_state(run, "completed")
    field.expect("done", done_in(session), ["beans"])
    return session


def while_one_runs_and_one_waits(field: Field) -> "Story":
    session = field.new_session("ask")
    reading = '{"name": "work", "input": {"effect": "reads"}}'
    # The call uses another file, because an approval ends if the file changes meanwhile.
    adding = '{"name": "add", "input": {"line": "beans", "file": "added.txt"}}'
    run = field.say(session, f"tools=[{reading}, {adding}]")
    field.wait("it begins", lambda: done_in(session))
    yield
    until_asked(field, session, run)
    states = [call.state for call in calls_of(session)]
    field.expect("states", states, ["interrupted", "waiting_approval"])
    field.allow(session)
    field.wait_state(run, "completed")
    field.expect("done", done_in(session), ["begin "])
    added = (Path(session.workspace.root) / "added.txt").read_text()
    field.expect("added", added, "beans\n")
    return session


def at_any_moment(field: Field) -> "Story":
    session = field.new_session("auto")
    run = field.say(session, 'rounds=40 tool=add input={"line": "beans"}')
    field.wait("it begins", lambda: done_in(session))
    sleep(field.random.uniform(0, 0.4))
    yield
    field.wait_state(run, "completed", "interrupted")
    states = [call.state for call in calls_of(session)]
    completed, interrupted = states.count("completed"), states.count("interrupted")
    field.expect("all ended", completed + interrupted, len(states))
    if not completed <= len(done_in(session)) <= completed + interrupted:
        field.problems.append(f"{len(done_in(session))} times done, {completed} completed")
    return session


STORIES = (
    while_a_tool_runs,
    while_an_approval_waits,
    between_decision_and_execution,
    while_one_runs_and_one_waits,
    while_a_command_changes_files,
)
"""Stories in which the process is idle at the kill, so that it does not hold the database."""

AT_RANDOM = (while_files_are_written, at_any_moment)
"""Stories with a kill at a random moment, which the last one chooses."""


def problems_of(session: "Session") -> Iterator[str]:
    """Check that every call ended once, with a turn and a row, and that the archive is valid."""
    from conversations.archive.journal import walk_events
    from conversations.archive.sessions import get_session
    from conversations.archive.verify import verify_session
    from conversations.domain.events import ToolCallCompleted, ToolCallStarted

    payloads = [event.payload for event in walk_events(session.pk, start=None, limit=500)]
    started = [p.call for p in payloads if isinstance(p, ToolCallStarted)]
    completed = [p.call for p in payloads if isinstance(p, ToolCallCompleted)]
    calls = calls_of(session)
    if not sorted(started) == sorted(completed) == sorted(str(call.uuid) for call in calls):
        yield "rows are not paired"
    turns = {call.result_turn for call in calls}
    if None in turns or len(turns) != len(calls) or len(calls) != len(results_of(session)):
        yield "a call has no result of its own"
    verified = verify_session(get_session(session.uuid))
    if verified.problem:
        yield verified.problem


def play(field: Field, stories: "Sequence[Callable[[Field], Story]]") -> None:
    """Play the stories together, so that each kill is a kill in all of them."""
    playing = {story.__name__: story(field) for story in stories}
    while True:
        for name, story in list(playing.items()):
            if not go_on(field, name, story):
                del playing[name]
        if not playing:
            return
        field.kill()
        field.start()


def go_on(field: Field, name: str, story: "Story") -> bool:
    """Play a story until the next kill. Return False when the story is over."""
    try:
        next(story)
    except TimeoutError as error:
        field.problems.append(f"{name}: never came to pass: {error}")
    except StopIteration as end:
        conclude(field, name, end.value)
    else:
        return True
    return False


def conclude(field: Field, name: str, session: "Session") -> None:
    (Path(session.workspace.root) / "go").touch()
    again = field.say(session, "words=5")
    field.wait_state(again, "completed")  # the session goes on
    field.problems += [f"{name}: {problem}" for problem in problems_of(session)]


def play_stories(ground: Ground, *, rounds: int, random: Random) -> list[str]:
    """Play all stories and return the problems."""
    field = Field(ground, random)
    try:
        field.start()
        play(field, STORIES)
        for _ in range(rounds):
            play(field, AT_RANDOM)
    finally:
        field.kill()
    print(f"{field.kills - 1} kills of tools, {len(field.problems)} problems", flush=True)
    return field.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run's moments")
    parser.add_argument("--database", type=Path, help="a migrated one to begin with")
    options = parser.parse_args()
    with prepared(options.database) as ground:
        problems = play_stories(ground, rounds=options.rounds, random=Random(options.seed))
    return conclude_script(ground, problems)


if __name__ == "__main__":
    sys.exit(main())
