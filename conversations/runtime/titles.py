"""Titles of new sessions, by a cheap model. Until one is there, and where none comes, the
first words of the session are its title; one that a person chose stays."""

import logging
import re
from collections.abc import Sequence
from contextlib import aclosing
from time import monotonic

from conversations.agent.window.title import make_title_request, title_manifest
from conversations.agent.window.window import request_digest
from conversations.archive.model_calls import append_failed_call, check_model_call, save_title
from conversations.archive.sessions import read_untitled
from conversations.archive.turns import read_turns_in
from conversations.domain import runs as states
from conversations.domain.errors import LoomError, ProviderError
from conversations.domain.stream import MessageCompleted
from conversations.domain.text import storable, strip_marks, without_unseen
from conversations.domain.turns import ASSISTANT, USER, StoredTurn, text_of_answer
from conversations.models import ModelCall

from .execution import Execution
from .models import REPLACED_BY_OWN

logger = logging.getLogger(__name__)

FIRST_TURN = 1
MAX_TURNS = 20  # In which the answer to the first message is looked for
MAX_TITLE_CHARS = 80
OFF, AUTO = "off", "auto"

_QUOTES = re.compile(r"^(?:title:\s*)?[\"'“”„«‘*#\s]*|[\"'“”»’*.\s]*$", re.IGNORECASE)


def wants_title(execution: Execution) -> bool:
    """Whether this was the first answer of a session."""
    claimed, context = execution.claimed, execution.context
    return (
        context.options.title_model != OFF
        and not context.models.is_demo
        and claimed.kind == states.MESSAGE
        and claimed.user_turn == FIRST_TURN
        and execution.state == states.COMPLETED
    )


async def write_title(execution: Execution) -> None:
    """Have a title written, unless a person has chosen one. A failure is in the log only."""
    context, claimed = execution.context, execution.claimed
    read, write = context.database.readers.read, context.database.writer.write
    session_pk = claimed.session_pk
    try:
        own_model = await read(read_untitled, session_pk)
        if own_model is None:
            return
        own = context.models.model_for(own_model)
        turns = await read(read_turns_in, session_pk, [(FIRST_TURN, MAX_TURNS)])
        said = [one for one in turns if one.role == USER][:1]
        said += [one for one in turns if one.role == ASSISTANT and one.content.strip()][:1]
        for model in dict.fromkeys((context.models.title_model_for(own), own)):
            await read(check_model_call, session_pk, person_pk=claimed.user_pk)
            message, call = await _ask(execution, said, model=model)
            if message is not None:
                title = read_title(text_of_answer(message.blocks))
                if await write(save_title, claimed, call=call, title=title):
                    context.publisher.publish(session_pk, {"type": "title", "title": title})
                return
            await write(append_failed_call, claimed, call=call)
            if call.error_code not in REPLACED_BY_OWN:
                return
    except LoomError as error:
        logger.warning("title_not_written", extra={"fields": {"error_code": error.code}})


async def _ask(
    execution: Execution, said: Sequence[StoredTurn], *, model: str
) -> tuple[MessageCompleted | None, ModelCall]:
    """The model's answer, if it gives one, and the record of the call."""
    request = make_title_request(said, model=model)
    message, error_code, began = None, "", monotonic()
    try:
        async with aclosing(execution.context.models.stream(request)) as items:
            async for item in items:
                message = item if isinstance(item, MessageCompleted) else message
    except ProviderError as error:
        error_code = error.code
    call = execution.record(
        message,
        model=model,
        manifest=title_manifest(request, [one.number for one in said]),
        request_digest=request_digest(request),
        error_code=error_code,
        duration_ms=int((monotonic() - began) * 1000),
    )
    return message, call


def read_title(text: str) -> str:
    """The title in an answer; empty where it is none."""
    lines = [line for line in storable(text).splitlines() if line.strip()]
    line = strip_marks(without_unseen(lines[0])) if lines else ""
    title = " ".join(_QUOTES.sub("", line).split())
    return title if len(title) <= MAX_TITLE_CHARS else ""
