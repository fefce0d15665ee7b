"""Forms of the pages, and checks of other input."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, tzinfo
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.utils.text import normalize_newlines
from django.utils.translation import gettext, gettext_lazy

from conversations.archive.tool_calls import MAX_REASON_CHARS
from conversations.archive.workspaces import create_workspace, find_user, resolve_root
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.text import YEARS, number_text, require_encodable, storable
from conversations.domain.tool_calls import ASK, AUTO, READ_ONLY
from conversations.models import Workspace
from conversations.runtime.current import list_models

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")

_WINDOW_FIELDS = (
    "window_strategy",
    "keep_recent",
    "high_water",
    "low_water",
    "reads_instruction_files",
)


class WorkspaceForm(forms.Form):
    name = forms.CharField(max_length=120, required=False, label=gettext_lazy("Name"), strip=True)
    root = forms.CharField(max_length=1024, label=gettext_lazy("Folder"), strip=True)


def make_workspace_at(root: str, name: str, *, owner: User) -> Workspace:
    """Create a workspace for a folder that may have one. Without a name, it has the folder's.

    Raise Rejected if the folder cannot be used.
    """
    folder = resolve_root(
        root, roots=settings.LOOM.workspace_roots, data_dir=settings.LOOM.data_dir, user_pk=owner.pk
    )
    return create_workspace(root=folder, name=name, owner=owner)


class SharedForm(forms.Form):
    """A form for values that several people change.

    The page sends each field's value at the time when the page was rendered (``shown``). A field
    that the person left as it was keeps its current value. If somebody else has changed a field
    meanwhile that the person changed as well, it is overwritten only when the person saves again.
    """

    def __init__(self, data: Any = None, *, initial: dict[str, Any]) -> None:
        super().__init__(data, initial=initial)
        self._overtaken: list[str] = []
        if data is None:
            return
        self.data = merged = data.copy()
        for field in self:
            if field.html_initial_name not in data:
                continue
            shown = _as_text(data[field.html_initial_name])
            written = _as_text(field.data)
            current = _as_text(field.initial)
            if written == shown:
                values = field.initial if isinstance(field.initial, list) else [current]
                merged.setlist(field.html_name, values)
            elif current not in (shown, written):
                self._overtaken.append(str(field.label))

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [(field.html_initial_name, _as_text(field.initial)) for field in self]

    def clean(self) -> dict[str, Any]:
        if self._overtaken:
            message = gettext(
                "Nothing was saved because someone else has changed: %(names)s. To see the "
                "change, open this page in another tab. Saving again overwrites it."
            )
            raise forms.ValidationError(message % {"names": ", ".join(self._overtaken)})
        return self.cleaned_data


def _as_text(value: Any) -> str:
    return "" if value is None else normalize_newlines(str(value))


class LinesField(forms.CharField):
    """Text of several lines, in which a line break counts as one character.

    A browser counts a line break as one character towards the limit, but sends two.
    """

    def to_python(self, value: Any) -> str | None:
        return super().to_python(value.replace("\r\n", "\n") if value else value)


class WorkspaceSettingsForm(SharedForm):
    name = forms.CharField(max_length=120, label=gettext_lazy("Name"), strip=True)
    instructions = LinesField(
        required=False,
        max_length=100_000,
        label=gettext_lazy("Instructions"),
        widget=forms.Textarea,
        strip=False,
    )
    default_model = forms.CharField(
        max_length=120, required=False, label=gettext_lazy("Default model"), strip=True
    )

    window_strategy = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Turns that no longer fit"),
        choices=(
            ("", gettext_lazy("Server default")),
            ("archive", gettext_lazy("Leave out; the model can search them")),
            ("sliding_window", gettext_lazy("Replace with a one-line note")),
            ("summarize", gettext_lazy("Replace with a summary by a cheaper model")),
        ),
    )
    keep_recent = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=1000,
        label=gettext_lazy("Exchanges to keep"),
        help_text=gettext_lazy(
            "An exchange is a message and everything that answers it. Exchanges are kept as "
            "long as they fit."
        ),
    )
    high_water = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=100,
        label=gettext_lazy("High-water mark (%)"),
        help_text=gettext_lazy(
            "Older turns are omitted once the history fills more of the context than this."
        ),
    )
    low_water = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=100,
        label=gettext_lazy("Low-water mark (%)"),
        help_text=gettext_lazy("Maximum share of the context that the history fills afterwards."),
    )
    reads_instruction_files = forms.TypedChoiceField(
        required=False,
        label=gettext_lazy("AGENTS.md and CLAUDE.md files"),
        choices=(
            ("", gettext_lazy("Server default")),
            ("yes", gettext_lazy("Read them")),
            ("no", gettext_lazy("Ignore them")),
        ),
        coerce=lambda value: value == "yes",
        empty_value=None,
    )

    def __init__(self, workspace: Workspace, data: Any = None) -> None:
        super().__init__(data, initial=self.values_of(workspace))
        # A model that is not on offer any more stays chosen until another one is.
        self._models = [*(model.id for model in list_models()), workspace.default_model]
        for name in ("keep_recent", "high_water", "low_water"):
            self.fields[name].widget.attrs["placeholder"] = getattr(settings.LOOM, name)

    @classmethod
    def values_of(cls, workspace: Workspace) -> dict[str, Any]:
        """Return the values of the workspace in the format in which a browser sends them."""
        values = {name: getattr(workspace, name) for name in cls.base_fields}
        reads = {None: "", True: "yes", False: "no"}[workspace.reads_instruction_files]
        return values | {"reads_instruction_files": reads}

    @property
    def general_fields(self) -> list[forms.BoundField]:
        return [field for field in self.visible_fields() if field.name not in _WINDOW_FIELDS]

    @property
    def window_fields(self) -> list[forms.BoundField]:
        return [field for field in self.visible_fields() if field.name in _WINDOW_FIELDS]

    @property
    def window_is_set(self) -> bool:
        """Whether the workspace has any window rule of its own, or the form has an error."""
        return bool(self.errors) or any(self[name].value() for name in _WINDOW_FIELDS)

    def clean_default_model(self) -> str:
        """Return the model. An empty string means the server's default."""
        chosen: str = self.cleaned_data["default_model"]
        if chosen and chosen not in self._models:
            raise forms.ValidationError(gettext("This model is not available."))
        return chosen

    def clean(self) -> dict[str, Any]:
        """Check the water marks with the server's values for those that are not set."""
        values = super().clean()
        high = values.get("high_water") or settings.LOOM.high_water
        low = values.get("low_water") or settings.LOOM.low_water
        if low >= high:
            raise forms.ValidationError(
                gettext(
                    "The low-water mark (%(low)s %%) must be below the high-water mark "
                    "(%(high)s %%)."
                )
                % {"low": low, "high": high}
            )
        return values


class ToolRulesForm(SharedForm):
    tool_policy = forms.ChoiceField(
        label=gettext_lazy("Tool calls that make changes"),
        choices=(
            (ASK, gettext_lazy("Ask each time")),
            (AUTO, gettext_lazy("Run without asking")),
            (READ_ONLY, gettext_lazy("Read-only: refuse changes")),
        ),
        help_text=gettext_lazy("Read-only calls never need approval."),
    )
    allows_network = forms.BooleanField(
        required=False,
        label=gettext_lazy("Allow network access"),
        help_text=gettext_lazy("For commands and web pages, within the limits of this server."),
    )
    channel_recall = forms.ChoiceField(
        label=gettext_lazy("Sessions from channels, work items and programs can quote"),
        choices=(
            (Workspace.ChannelRecall.SESSION, gettext_lazy("Themselves only")),
            (Workspace.ChannelRecall.WORKSPACE, gettext_lazy("The whole workspace")),
        ),
        help_text=gettext_lazy(
            "If you choose the whole workspace, people who talk to the model there can find "
            "out what was said in any session of this workspace, including direct messages."
        ),
    )

    def __init__(self, workspace: Workspace, data: Any = None) -> None:
        super().__init__(data, initial=self.values_of(workspace))

    @classmethod
    def values_of(cls, workspace: Workspace) -> dict[str, Any]:
        return {name: getattr(workspace, name) for name in cls.base_fields}


def check_client_id(value: Any) -> str:
    """Raise Rejected unless the value has 8 to 64 characters of ``A-Z a-z 0-9 _ -``."""
    if not isinstance(value, str) or not CLIENT_ID.fullmatch(value):
        raise Rejected(
            "client_id must have 8 to 64 characters from A-Z a-z 0-9 _ -.", code="bad_client_id"
        )
    return value


def check_uuid(text: str, name: str) -> UUID:
    """Return the UUID. Raise Rejected, naming the parameter ``name``, if it is not one."""
    try:
        return UUID(text)
    except ValueError as error:
        raise Rejected("%(name)s must be a UUID.", code="bad_uuid", name=name) from error


def check_attachment_ids(value: Any) -> list[str]:
    """Return the uuids of a message's attachments without duplicates. Raise Rejected otherwise."""
    try:
        if not isinstance(value, list):
            raise TypeError
        return list(dict.fromkeys(str(UUID(item)) for item in value))
    except (ValueError, TypeError, AttributeError) as error:
        raise Rejected("attachments must be a list of UUIDs.", code="bad_attachments") from error


def check_reason(value: Any) -> str:
    """Return the reason for denying a call, which the model reads and which may be empty.

    Raise Rejected if it is not text, contains a lone surrogate or is too long.
    """
    reason = storable(require_encodable(value)).strip() if isinstance(value, str) else None
    if reason is None or len(reason) > MAX_REASON_CHARS:
        raise Rejected(
            "A reason can have at most %(limit)s characters.",
            code="bad_reason",
            limit=number_text(MAX_REASON_CHARS),
        )
    return reason


def check_message_text(value: Any, *, may_be_empty: bool) -> str:
    """Return the text of a message.

    Raise Rejected for an empty text or one with a lone surrogate, and TooLarge above the limit.
    """
    if not isinstance(value, str) or not (value.strip() or may_be_empty):
        raise Rejected("The message is empty.", code="message_empty")
    limit = settings.LOOM.max_message_chars
    if len(value) > limit:
        raise TooLarge(
            "This message has %(count)s characters; the limit is %(limit)s. Put long text into a "
            "file in the workspace.",
            code="message_too_long",
            count=number_text(len(value)),
            limit=number_text(limit),
        )
    return require_encodable(value)


# Fields that several forms use.


def check_year(day: date) -> None:
    """Raise ValidationError if the year is out of range."""
    if day.year not in YEARS:
        message = gettext("The year must be from %(first)s through %(last)s.")
        raise forms.ValidationError(message % {"first": YEARS[0], "last": YEARS[-1]})


def date_field(label: "_StrOrPromise") -> forms.DateField:
    """Return an optional date field in the format of the browser's own date picker."""
    return forms.DateField(
        label=label,
        required=False,
        input_formats=["%Y-%m-%d"],
        widget=forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"}),
        validators=[check_year],
        error_messages={"invalid": gettext_lazy("A date must look like 2026-01-31.")},
    )


def midnight(day: date | None, zone: tzinfo = UTC) -> datetime | None:
    """Return the time at which the day begins."""
    return datetime.combine(day, time.min, tzinfo=zone) if day else None


class FilterForm(forms.Form):
    """Filters of a list, read from a URL.

    Any text is accepted, and characters that a database cannot store are replaced first.
    ``workspaces`` are the choices of the ``workspace`` field, if the form has one.
    """

    use_required_attribute = False

    def __init__(
        self, data: Mapping[str, str], *, workspaces: Iterable[tuple[str, str]] = (), **kwargs: Any
    ) -> None:
        text = {name: storable(value).strip() for name, value in data.items()}
        super().__init__(text, **kwargs)
        workspace = self.fields.get("workspace")
        if isinstance(workspace, forms.ChoiceField):
            workspace.choices = [("", gettext("All")), *workspaces]


class PersonField(forms.CharField):
    """The name of an account, which may be closed, or no text."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            max_length=150,
            label=gettext_lazy("Person"),
            widget=forms.TextInput,
        )

    def clean(self, value: Any) -> User | None:
        name = super().clean(value)
        try:
            return find_user(name, even_closed=True) if name else None
        except Rejected as error:
            raise forms.ValidationError(gettext("This username does not exist.")) from error
