"""What a tool is called with: one typed declaration for each tool, from which come both the JSON
schema that the model is told and the reading of what it sends.

What is read is taken in good faith: null is as good as nothing, a number may come as digits in a
text, a well-known tool's name of an argument stands for ours (``named``), and arguments that there
are not are passed over. What cannot be used is answered with sentences that say what to send
instead.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUseDefault
from pydantic_core.core_schema import WithDefaultSchema

HIGHEST = 10**15  # What databases and slices can take; a higher number means this one


class BadArgument(ValueError):
    """An argument cannot be used; the text says what to send instead."""


class Arguments(BaseModel):
    """The arguments of one call. Every field has a description for the model; one with a default
    need not be sent."""

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


def schema_of(declared: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of the arguments, as the model is told of it."""
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


@dataclass(frozen=True, slots=True)
class Must:
    """What is said where an argument is missing or of the wrong form: it must …"""

    be: str


def named(name: str, *others: str, description: str) -> Any:
    """A field that is also taken under other names; the model is told of the first."""
    return Field(description=description, validation_alias=AliasChoices(name, *others))


def _not_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


def _not_blank(value: Any) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise PydanticUseDefault
    return value


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a truth value")
    return value


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _capped(value: int) -> int:
    return min(value, HIGHEST)


# Without space around it.
Text = Annotated[str, BeforeValidator(_not_blank), AfterValidator(str.strip)]

ExactText = Annotated[str, BeforeValidator(_not_null)]  # As it was sent; may be empty

# As it was sent: names of files may begin or end with a space.
PathText = Annotated[
    str, BeforeValidator(_not_blank), Must("be a path inside the workspace's folder.")
]

FilePath = Annotated[
    PathText,
    named(
        "path",
        "file_path",
        description="Relative to the workspace's folder, or absolute inside it.",
    ),
]

# A whole number from 1 on.
Whole = Annotated[
    int,
    Field(ge=1),
    AfterValidator(_capped),
    BeforeValidator(_no_flag),
    BeforeValidator(_not_blank),
]

WholeOrZero = Annotated[
    int,
    Field(ge=0),
    AfterValidator(_capped),
    BeforeValidator(_no_flag),
    BeforeValidator(_not_blank),
]

Flag = Annotated[bool, BeforeValidator(_not_blank)]

OneOf = BeforeValidator(_stripped)  # With a ``Literal`` of texts


def _explain(declared: type[Arguments], found: ErrorDetails) -> str:
    name = str(found["loc"][0])
    fields = declared.model_fields
    field = fields[name] if name in fields else next(f for f in fields.values() if name in names(f))
    must = next((rule.be for rule in field.metadata if isinstance(rule, Must)), "")
    if found["type"] != "missing":
        return f"'{name}' must {_form(field) or must}"
    if must or get_origin(field.annotation) is Literal:
        return f"'{name}' must {must or _form(field)}"
    return f"'{name}' is missing: {field.description}"


def _form(field: FieldInfo) -> str:
    """What the type asks for, empty where that is several."""
    if field.annotation is int:
        lowest = next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), 0)
        return f"be a whole number from {lowest} on."
    if get_origin(field.annotation) is Literal:
        return f"be one of {', '.join(map(repr, get_args(field.annotation)))}."
    if field.annotation is bool:
        return "be true or false."
    return "be a text." if field.annotation is str else ""


def names(field: FieldInfo) -> list[str]:
    """The names under which it is taken, if it has others than its own."""
    alias = field.validation_alias
    return [str(name) for name in alias.choices] if isinstance(alias, AliasChoices) else []
