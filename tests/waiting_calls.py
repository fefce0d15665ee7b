"""A session with a tool call that waits for a person, left behind by a dead process."""

from typing import Any
from uuid import uuid4

from conversations.archive.append import NewEvent, prepare_event
from conversations.archive.messages import accept_message
from conversations.archive.model_calls import append_answer
from conversations.archive.runs import release_run
from conversations.archive.tool_calls import ask_for_calls
from conversations.domain.events import APPROVAL, APPROVAL_ASKED, Info, ToolCallStarted
from conversations.domain.text import dump_json
from conversations.domain.tool_calls import ApprovalRequest
from conversations.domain.turns import NewTurn
from conversations.models import ModelCall, Session, ToolCall


def leave_question(session: Session, *, name: str = "add", line: str = "beans") -> ToolCall:
    """Create a call of the tool ``add`` whose approval request has not been answered."""
    accepted = accept_message(
        session,
        client_id=uuid4().hex,
        text="Plant them",
        user_pk=session.owner_id,
        max_queued=9,
        owner="gone",
    )
    claimed = accepted.claimed
    assert claimed is not None
    uuid, call_id = uuid4(), f"toolu_{uuid4().hex[:8]}"
    block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": name}
    block["input"] = {"line": line}
    started = ToolCallStarted(call_id=call_id, name=name, arguments=block["input"], call=str(uuid))
    append_answer(
        claimed,
        turn=NewTurn(
            role="assistant",
            content="",
            blocks=dump_json([block]),
            tool_calls=dump_json([block]),
            stop_reason="tool_use",
            token_count=10,
        ),
        events=[prepare_event(NewEvent(payload=started, new=0), session_uuid=session.uuid)],
        call=ModelCall(ordinal=0, model="m", manifest="{}", request_digest=""),
        tool_calls=[(uuid, block)],
    )
    call = ToolCall.objects.get(uuid=uuid)
    asked = ApprovalRequest(
        call=str(uuid),
        call_id=call_id,
        name=name,
        summary="Add to done.txt",
        diff=f"@@ -0 @@\n+{line}",
        kind_key="files",
        kind_label="changes of files",
        basis="none",
    )
    row = Info(text="?", kind=APPROVAL, code=APPROVAL_ASKED, data=asked.as_data())
    question = prepare_event(NewEvent(payload=row), session_uuid=session.uuid)
    ask_for_calls(session.pk, questions=[(call.pk, asked, question)])
    release_run(claimed, outputs={})
    return call
