"""Titles of new sessions, written by a cheap model.

Until such a title is there, or if none can be made, the first words of the session are its title. A
title that a person chose is never replaced.
"""

import logging
import re
from collections.abc import Sequence

from conversations.agent.window.title import make_title_request, title_manifest
from conversations.archive.append import MAX_MADE_TITLE_CHARS
from conversations.archive.model_calls import check_model_call, save_title
from conversations.archive.sessions import read_untitled
from conversations.archive.turns import read_turns_in
from conversations.domain import runs as states
from conversations.domain.errors import LoomError, ProviderError
from conversations.domain.stream import MessageCompleted
from conversations.domain.text import storable, strip_invisible, strip_marks
from conversations.domain.turns import ASSISTANT, USER, StoredTurn, text_of_answer

from .execution import Execution
from .model_routing import REPLACED_BY_OWN
from .side_calls import SideCall, estimate_request

logger = logging.getLogger(__name__)

FIRST_TURN = 1
MAX_TURNS = 20  # Number of turns within which the first answer is looked for
OFF, AUTO = "off", "auto"

_QUOTES = re.compile(r"^(?:title:\s*)?[\"'“”„«‘*#\s]*|[\"'“”»’*.\s]*$", re.IGNORECASE)


def wants_title(execution: Execution) -> bool:
    """Return whether a title has to be written, because this was the session's first answer."""
    claimed, context = execution.claimed, execution.context
    return (
        context.options.title_model != OFF
        and not context.models.is_demo
        and claimed.kind == states.MESSAGE
        and claimed.user_turn == FIRST_TURN
        and execution.state == states.COMPLETED
    )


async def write_title(execution: Execution) -> None:
    """Write a title unless a person has chosen one. A failure is only logged."""
    context, claimed = execution.context, execution.claimed
    read, write = context.database.readers.read, context.database.writer.write
    session_pk = claimed.session_pk
    try:
        chosen_model = await read(read_untitled, session_pk)
        if chosen_model is None:
            return
        own_model = context.models.model_for(chosen_model)
        turns = await read(read_turns_in, session_pk, [(FIRST_TURN, MAX_TURNS)])
        exchange = [turn for turn in turns if turn.role == USER][:1]
        exchange += [turn for turn in turns if turn.role == ASSISTANT and turn.content.strip()][:1]
        for model in dict.fromkeys((context.models.title_model_for(own_model), own_model)):
            await read(check_model_call, session_pk, person_pk=claimed.user_pk)
            try:
                title = await _make_call(execution, exchange, model=model).ask(read_answer)
            except ProviderError as error:
                if error.code not in REPLACED_BY_OWN:
                    raise
                continue
            is_new = bool(title) and await write(save_title, session_pk, title=title)
            if is_new:
                context.publisher.publish(session_pk, {"type": "title", "title": title})
            return
    except LoomError as error:
        logger.warning("title_not_written", extra={"fields": {"error_code": error.code}})


def _make_call(execution: Execution, turns: Sequence[StoredTurn], *, model: str) -> SideCall:
    request = make_title_request(turns, model=model)
    manifest = title_manifest(request, [turn.number for turn in turns])
    return SideCall(execution, request, manifest, estimate_request(request))


def read_answer(message: MessageCompleted) -> str:
    if message.stop_reason == "max_tokens":  # it may have got no further than thinking
        return ""
    return read_title(text_of_answer(message.blocks))


def read_title(text: str) -> str:
    """Return the title in an answer, or an empty string if the answer has none that is usable."""
    lines = [line for line in storable(text).splitlines() if line.strip()]
    line = strip_marks(strip_invisible(lines[0])) if lines else ""
    title = " ".join(_QUOTES.sub("", line).split())
    return title if len(title) <= MAX_MADE_TITLE_CHARS else ""
