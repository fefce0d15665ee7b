"""The declaration of a tool, and the context, arguments and result of a call."""

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
from conversations.agent.undo.disk import ChangeAuthor, DatabaseCall
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json
from conversations.domain.tool_calls import READS, CallPlan, ToolScope
from conversations.domain.tool_questions import CANCEL

MAX_NUMBER = 10**15  # Safe for databases and slices; higher numbers are reduced to it


class BadArgument(ValueError):
    """An argument cannot be used. The text says what to send instead."""


class ToolArguments(BaseModel):
    """The arguments of one call.

    The declared fields define both the JSON schema for the model and the validation of the sent
    arguments. Every field has a description for the model. A field with a default may be omitted.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def read(cls, sent: dict[str, Any]) -> Self:
        """Validate the arguments that the model sent. Raise BadArgument if they are invalid."""
        try:
            return cls.model_validate(sent)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            sentences = dict.fromkeys(_explain(cls, error_details) for error_details in details)
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
    """A schema without parts that only cost tokens.

    These are titles, which repeat names, and defaults, which the descriptions mention.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


class Requirement(str):
    """The end of the sentence "'argument' must …", for a missing or malformed argument."""

    __slots__ = ()


def named(name: str, *others: str, description: str) -> Any:
    """Return a field with aliases. The model is told of the first name only."""
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
    # A file may have this name (``./~``), but a path that begins with it means another place.
    if value == "~" or value.startswith("~/"):
        raise Rejected(f"{shown(value)}: '~' is not expanded; give a path inside the workspace.")
    return value


_OPTIONAL, _NUMBER = BeforeValidator(_not_blank), BeforeValidator(_number)
_CAPPED = AfterValidator(_capped)

Text = Annotated[str, _OPTIONAL, AfterValidator(str.strip)]  # Without surrounding white space
ExactText = Annotated[str, BeforeValidator(_not_null)]  # As it was sent; may be empty
# As it was sent, because file names may begin or end with a space.
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
OneOf = BeforeValidator(_stripped)  # For a ``Literal`` of texts


_FORMS: dict[Any, str] = {bool: "be true or false.", str: "be a text."}


def _explain(declared: type[ToolArguments], error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    fields = declared.model_fields
    field = fields.get(name) or next(
        f
        for f in fields.values()
        if isinstance(f.validation_alias, AliasChoices) and name in f.validation_alias.choices
    )
    must = next((rule for rule in field.metadata if isinstance(rule, Requirement)), "")
    # The requirement of the type, or empty for a union of types
    form = _FORMS.get(field.annotation, "")
    if field.annotation is int:
        lowest = next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), 0)
        form = f"be a whole number from {lowest} on."
    elif get_origin(field.annotation) is Literal:
        form = f"be one of {', '.join(map(repr, get_args(field.annotation)))}."
        must = must or form
    if error["type"] != "missing":
        return f"'{name}' must {form or must}"
    return f"'{name}' must {must}" if must else f"'{name}' is missing: {field.description}"


type Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


async def _ask_nobody(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": CANCEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a call, with its access to the archive.

    ``user_pk`` is the person whose message is being answered, or None for a program of the server.
    ``call_turn`` is the turn that contains the call, ``call_pk`` the call's primary key, and
    ``root`` the workspace's folder. ``basis`` is the plan's basis if the plan was approved or is of
    a kind that is always allowed, and empty otherwise.

    ``report`` shows output while the call runs; its text is appended to the text already shown.
    ``ask`` asks a person: it takes the name of the server that asks and the parameters of an
    elicitation, and returns the result (see ``domain.tool_questions``). ``write`` runs in one
    transaction. The window shortens results that cost more than ``result_cap`` estimated tokens.
    """

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
    report: Callable[[str], None] = lambda _: None
    ask: Ask = _ask_nobody
    result_cap: int = MAX_NUMBER

    @property
    def author(self) -> ChangeAuthor:
        """The call, as the author of changes of files."""
        return ChangeAuthor(session_pk=self.session_pk, run_pk=self.run_pk, call_pk=self.call_pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call: text for the model and the row. ``ok`` is False if the call failed.

    ``blocks`` are content blocks that follow the text for the model (images and PDFs by reference,
    see ``archive.attachments``). ``diff`` is the change as unified diff, for the row.
    """

    ok: bool
    output: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    diff: str = ""
    exit_code: int | None = None


# Functions that execute a call, and that plan one
type RunWith[A] = Callable[[ToolContext, A], Awaitable[ToolResult]]
type PlanWith[A] = Callable[[ToolContext, A], Awaitable[CallPlan | ToolResult]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool that the model can call.

    ``run`` takes the arguments as the model sent them, validates them, and returns ``ok=False``
    with a sentence that says what to send instead if they are invalid. It may be cancelled at any
    await, and must then leave nothing running.

    ``effect`` is the strongest effect that a call can have. A tool that can change something has a
    ``plan``, which returns what the call would do without doing it, or a result that says why the
    call cannot be executed. ``is_offered`` decides whether the tool is offered. By default, a tool
    that always changes something is not offered if nothing may be changed. ``arguments`` is a
    declaration for a tool of ours (made by :func:`declare_tool`), or a JSON schema for a tool of
    another program.
    """

    name: str
    description: str
    arguments: type[ToolArguments] | dict[str, Any]
    run: RunWith[dict[str, Any]]
    effect: str = READS
    plan: PlanWith[dict[str, Any]] | None = None
    is_offered: Callable[[ToolScope], bool] | None = None

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        arguments = self.arguments
        return arguments if isinstance(arguments, dict) else schema_of(arguments)

    @cached_property
    def as_json(self) -> str:
        """The tool as JSON for the provider, cached because every call needs it."""
        data = {"name": self.name, "description": self.description}
        return dump_json(data | {"input_schema": self.input_schema})


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
    """Return a tool whose ``run`` and ``plan`` take the validated ``arguments``.

    If they raise BadArgument or Rejected, the message is returned to the model.
    """
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
