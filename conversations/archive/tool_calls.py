"""The records of tool calls: what a call is, whether it may run, how it ended."""

from conversations.models import ToolCall


def find_call(run_pk: int, *, turn: int, call_id: str) -> int:
    """The key of the record of a call that an answer holds."""
    calls = ToolCall.objects.filter(run=run_pk, turn_number=turn, call_id=call_id[:255])
    return int(calls.values_list("pk", flat=True).get())
