"""What a person is shown when a call needs approval."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """What a call is going to do, found out without doing it. ``summary`` is one line
    ("Edit src/app.py"), ``command`` or ``diff`` (unified) what exactly; ``note`` warns of
    something about it. ``kind`` is what "always" would allow, None: nothing. ``basis``
    stands for what the plan was made from (a digest of the file's content): a tool that
    finds something else when it runs refuses."""

    effect: str
    summary: str = ""
    command: str = ""
    diff: str = ""
    note: str = ""
    kind_key: str = ""
    kind_label: str = ""
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """The plan as it is kept with the call and in the row that asks. ``call`` is the
    uuid of the call's record."""

    call: str
    call_id: str
    name: str
    summary: str = ""
    command: str = ""
    diff: str = ""
    note: str = ""
    kind_key: str = ""
    kind_label: str = ""
    basis: str = ""

    def as_data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


def read_asked(data: dict[str, Any]) -> ApprovalRequest:
    """From a row's data or a call's record; what is missing or no text is empty."""
    names = ApprovalRequest.__dataclass_fields__
    return ApprovalRequest(
        **{name: v if isinstance(v := data.get(name), str) else "" for name in names}
    )
