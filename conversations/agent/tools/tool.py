"""What a tool is, how one is declared, and what a call of one is given and gives."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from uuid import UUID

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUseDefault
from pydantic_core.core_schema import WithDefaultSchema

from conversations.agent.files.paths import shown
from conversations.agent.undo.disk import DatabaseCall
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json
from conversations.domain.tool_calls import READS, CallPlan, ToolScope
from conversations.domain.tool_questions import CANCEL

MAX_NUMBER = 10**15  # What databases and slices can take; a higher number means this one


class BadArgument(ValueError):
    """An argument cannot be used; the text says what to send instead."""


class ToolArguments(BaseModel):
    """The arguments of one call: from its declaration come both the JSON schema that the model is
    told and the reading of what it sends. Every field has a description for the model; one with a
    default need not be sent."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def read(cls, sent: dict[str, Any]) -> Self:
        """What the model sent. Raises BadArgument."""
        try:
            return cls.model_validate(sent)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            sentences = dict.fromkeys(_explain(cls, one) for one in found)
        raise BadArgument(" ".join(sentences))


def schema_of(declared: type[ToolArguments]) -> dict[str, Any]:
    schema = declared.model_json_schema(schema_generator=_PlainSchema)
    return {
        "type": "object",
        "properties": schema.get("properties", {}),
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


class _PlainSchema(GenerateJsonSchema):
    """Without what only costs tokens: titles that repeat names, and defaults, which the
    descriptions tell."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


class Requirement(str):
    """What is said where an argument is missing or of the wrong form: it must …"""

    __slots__ = ()


def named(name: str, *others: str, description: str) -> Any:
    """A field that is also taken under other names; the model is told of the first."""
    return Field(description=description, validation_alias=AliasChoices(name, *others))


def _not_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


def _not_blank(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise PydanticUseDefault
    return _not_null(value)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a truth value")
    return _not_blank(value)


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _capped(value: int) -> int:
    return min(value, MAX_NUMBER)


def _not_home(value: str) -> str:
    # A file may have this name (``./~``), but who begins a path with it means another place.
    if value == "~" or value.startswith("~/"):
        raise Rejected(f"{shown(value)}: '~' is not expanded; give a path inside the workspace.")
    return value


_OPTIONAL, _NUMBER = BeforeValidator(_not_blank), BeforeValidator(_number)
_CAPPED = AfterValidator(_capped)

Text = Annotated[str, _OPTIONAL, AfterValidator(str.strip)]  # Without space around it
ExactText = Annotated[str, BeforeValidator(_not_null)]  # As it was sent; may be empty
# As it was sent: names of files may begin or end with a space.
PathText = Annotated[
    str,
    _OPTIONAL,
    AfterValidator(_not_home),
    Requirement("be a path inside the workspace's folder."),
]
_PLACE = "Relative to the workspace's folder, or absolute inside it."
FilePath = Annotated[PathText, named("path", "file_path", description=_PLACE)]
Whole = Annotated[int, Field(ge=1), _CAPPED, _NUMBER]
WholeOrZero = Annotated[int, Field(ge=0), _CAPPED, _NUMBER]
Flag = Annotated[bool, _OPTIONAL]
OneOf = BeforeValidator(_stripped)  # With a ``Literal`` of texts


_FORMS: dict[Any, str] = {bool: "be true or false.", str: "be a text."}


def _explain(declared: type[ToolArguments], found: ErrorDetails) -> str:
    name = str(found["loc"][0])
    fields = declared.model_fields
    field = fields.get(name) or next(
        f
        for f in fields.values()
        if isinstance(f.validation_alias, AliasChoices) and name in f.validation_alias.choices
    )
    must = next((rule for rule in field.metadata if isinstance(rule, Requirement)), "")
    # What the type asks for, empty where that is several
    form = _FORMS.get(field.annotation, "")
    if field.annotation is int:
        lowest = next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), 0)
        form = f"be a whole number from {lowest} on."
    elif get_origin(field.annotation) is Literal:
        form = f"be one of {', '.join(map(repr, get_args(field.annotation)))}."
        must = must or form
    if found["type"] != "missing":
        return f"'{name}' must {form or must}"
    return f"'{name}' must {must}" if must else f"'{name}' is missing: {field.description}"


def _report_nothing(text: str) -> None:
    """Nobody watches."""


type Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


async def _ask_nobody(server: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": CANCEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """For whom a call is executed, and its ways to the archive. ``user_pk`` is the person whose
    message is being answered; None: a program of the server. ``call_turn`` is the turn that holds
    the call, ``call_pk`` the call's record, ``root`` the workspace's folder. ``basis`` is that of
    the plan which was approved or is of a kind that is always allowed, else empty. ``report`` shows
    output while the call runs: text to add to what was shown. ``ask`` asks a person: the parameters
    and the result of an elicitation (see ``domain.tool_questions``) by the server of that name.
    ``write`` is one transaction. ``result_cap``: the window shortens a result that costs more
    estimated tokens."""

    session_pk: int
    session: UUID
    user_pk: int | None
    call_turn: int
    root: Path
    read: DatabaseCall
    write: DatabaseCall
    scope: ToolScope
    run_pk: int
    call_pk: int
    basis: str = ""
    report: Callable[[str], None] = _report_nothing
    ask: Ask = _ask_nobody
    result_cap: int = MAX_NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave: text for the model and the row; ``ok`` False: it failed.

    ``blocks`` are content blocks that the model gets behind the text (images and PDFs by reference,
    see ``archive.attachments``), ``diff`` what was changed, as unified diff, for the row."""

    ok: bool
    output: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    diff: str = ""
    exit_code: int | None = None


# What executes a call, and what says what it would do
type RunWith[A] = Callable[[ToolContext, A], Awaitable[ToolResult]]
type PlanWith[A] = Callable[[ToolContext, A], Awaitable[CallPlan | ToolResult]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """``run`` gets the arguments as the model sent them: it checks them itself and answers with
    ``ok=False`` and a sentence that says what to do instead. It may be cancelled at any await, and
    leaves nothing running then.

    ``effect`` is the most that a call of it can do. A tool that can change something has a
    ``plan``, which says what this call would do, without doing it; or why it cannot be executed,
    as a result. ``is_offered`` says where the tool is on offer, beyond the rule that one which
    always changes something is not where nothing may be changed. ``arguments`` is what it is called
    with: a declaration for a tool of ours (made by :func:`declare_tool`), a JSON schema for one of
    another program."""

    name: str
    description: str
    arguments: type[ToolArguments] | dict[str, Any]
    run: RunWith[dict[str, Any]]
    effect: str = READS
    plan: PlanWith[dict[str, Any]] | None = None
    is_offered: Callable[[ToolScope], bool] | None = None

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        given = self.arguments
        return given if isinstance(given, dict) else schema_of(given)

    @cached_property
    def as_json(self) -> str:
        """The tool as the provider is told of it; written once, read for every call."""
        told = {"name": self.name, "description": self.description}
        return dump_json(told | {"input_schema": self.input_schema})


def declare_tool[A: ToolArguments](
    *,
    name: str,
    description: str,
    arguments: type[A],
    run: RunWith[A],
    plan: PlanWith[A] | None = None,
    effect: str = READS,
    is_offered: Callable[[ToolScope], bool] | None = None,
) -> Tool:
    """A tool whose ``run`` and ``plan`` get what was sent as ``arguments``. What they raise as
    BadArgument or Rejected is told to the model."""
    return Tool(
        name=name,
        description=description,
        arguments=arguments,
        run=_reading(arguments, run),
        plan=_reading(arguments, plan) if plan else None,
        effect=effect,
        is_offered=is_offered,
    )


def _reading[A: ToolArguments, R](
    arguments: type[A], step: Callable[[ToolContext, A], Awaitable[R]]
) -> Callable[[ToolContext, dict[str, Any]], Awaitable[R | ToolResult]]:
    async def execute(context: ToolContext, sent: dict[str, Any]) -> R | ToolResult:
        try:
            return await step(context, arguments.read(sent))
        except (BadArgument, Rejected) as error:
            return ToolResult(ok=False, output=str(error))

    return execute
