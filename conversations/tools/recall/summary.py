"""Action ``summary``: the session's state and its figures; no model is asked."""

from collections.abc import Iterator

from conversations.archive.session_state import read_state_text

from .past_calls import list_tools
from .quotation import PREFACE, moment_text, quote_text
from .request import Request, Target


def summary(request: Request) -> str:
    target = request.target()
    state = read_state_text(target.pk).yaml
    text = "\n".join([*_figures(target), *(["", state] if state else [])])
    return "\n".join([PREFACE, quote_text(text)])


def _figures(target: Target) -> Iterator[str]:
    facts = target.facts
    yield f"session: {facts.uuid}"
    if facts.title:
        yield f"title: {facts.title}"
    yield f"workspace: {facts.workspace}"
    yield f"turns: {facts.turn_count:,}"
    if facts.first_at and facts.last_at:
        yield f"first turn: {moment_text(facts.first_at)}"
        yield f"last turn: {moment_text(facts.last_at)}"
    yield f"tokens: {facts.input_tokens:,} in, {facts.output_tokens:,} out"
    if facts.rewind_count:
        yield f"times that turns were replaced: {facts.rewind_count:,}"
    yield f"tools used: {', '.join(list_tools(facts.pk)) or 'none'}"
