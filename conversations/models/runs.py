"""Models of runs and their parts: model calls, tool calls and drafts."""

import uuid
from datetime import datetime

from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint

from conversations.domain.runs import (
    ACTIVE_STATES,
    FAILED,
    FINAL_STATES,
    INTERRUPTED,
    RUN_KINDS,
    RUN_STATES,
    STOPPED,
)
from conversations.domain.stream import Usage
from conversations.domain.tool_calls import DECISIONS, OPEN_STATES, TOOL_CALL_STATES

from .fields import actor_field
from .sessions import Session

# A condition on runs that failed or were interrupted. SQLite uses the partial index only for these
# comparisons as they stand here, not for a list of states.
BROKEN = Q(state=FAILED) | Q(state=INTERRUPTED)


def involving(user_pk: int, *, before: datetime | None = None) -> Q:
    """Return a condition on sessions in which this person is involved.

    They own the session, or they requested a run in it, ``before`` that time if it is given.
    """
    runs = Run.objects.filter(requested_by=user_pk)
    if before is not None:
        runs = runs.filter(created_at__lt=before)
    return Q(owner=user_pk) | Q(pk__in=runs.order_by().values("session"))


class Run(models.Model):
    """One piece of work by the model for one user message.

    A waiting message is a run in the state ``queued`` whose ``text`` is not a turn yet.
    ``user_turn`` is set when the text becomes a turn. A message with ``goes_first`` is taken before
    other waiting messages, and at the next tool call of the active run. ``from_seq`` is the run's
    first row. It is set when the run begins; regenerated runs of an earlier version have none.
    ``choices`` are a program's options for the answers (JSON, see ``domain.runs``).
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="runs")
    client_id = models.CharField(max_length=64)
    kind = models.CharField(max_length=12, default="message", db_default="message")
    state = models.CharField(max_length=20)
    text = models.TextField(default="", db_default="")
    attachments = models.TextField(default="[]", db_default="[]")
    choices = models.TextField(null=True)
    goes_first = models.BooleanField(default=False, db_default=False)
    user_turn = models.BigIntegerField(null=True)
    user_seq = models.BigIntegerField(null=True)
    from_seq = models.BigIntegerField(null=True)
    requested_by = actor_field()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    owner = models.CharField(max_length=64, default="", db_default="")
    heartbeat_at = models.DateTimeField(null=True)
    stop_requested_at = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=64, default="", db_default="")
    note = models.CharField(max_length=255, default="", db_default="")

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(fields=("session", "client_id"), name="run_client_id_unique"),
            UniqueConstraint(
                fields=("session",),
                condition=Q(state__in=ACTIVE_STATES),
                name="run_one_active_per_session",
            ),
            CheckConstraint(condition=Q(state__in=RUN_STATES), name="run_state_known"),
            CheckConstraint(condition=Q(kind__in=RUN_KINDS), name="run_kind_known"),
        )
        indexes = (
            Index(fields=("session", "id"), condition=Q(state="queued"), name="run_queued"),
            Index(
                fields=("owner",), condition=Q(state__in=ACTIVE_STATES), name="run_active_by_owner"
            ),
            Index(fields=("session",), condition=BROKEN, name="run_broken_of_session"),
            Index(
                fields=("session", "user_turn", "id"),
                condition=Q(choices__isnull=False),
                name="run_with_choices",
            ),
        )

    def __str__(self) -> str:
        return f"run {self.uuid} ({self.state})"

    @property
    def first_seq(self) -> int | None:
        """The ``seq`` of the run's first row, or None if it has no row yet."""
        return self.from_seq or self.user_seq

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES


class ModelCall(models.Model):
    """One request to the provider within a run.

    Times are in milliseconds, and the cost is in millionths of a US dollar. Null means not
    reported. ``session`` repeats the run's session, so that an index finds the call of a turn.
    ``stop_sequence`` is the stop sequence at which the answer ended, if the request had some.
    """

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="model_calls", db_index=False
    )
    run = models.ForeignKey(
        Run, on_delete=models.PROTECT, related_name="model_calls", db_index=False
    )
    ordinal = models.PositiveIntegerField()
    model = models.CharField(max_length=120)
    manifest = models.TextField()
    request_digest = models.CharField(max_length=64)
    turn_number = models.BigIntegerField(null=True)
    message_id = models.CharField(max_length=128, default="", db_default="")
    stop_reason = models.CharField(max_length=64, default="", db_default="")
    stop_sequence = models.TextField(null=True)
    error_code = models.CharField(max_length=64, default="", db_default="")
    input_tokens = models.BigIntegerField(null=True)
    output_tokens = models.BigIntegerField(null=True)
    cache_read_tokens = models.BigIntegerField(null=True)
    cache_write_tokens = models.BigIntegerField(null=True)
    cost_microusd = models.BigIntegerField(null=True)
    first_token_ms = models.IntegerField(null=True)
    duration_ms = models.IntegerField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("run", "ordinal")
        constraints = (UniqueConstraint(fields=("run", "ordinal"), name="model_call_unique"),)
        indexes = (
            Index(fields=("session", "id"), name="model_call_of_session"),
            Index(
                fields=("session", "turn_number", "id"),
                condition=Q(turn_number__isnull=False),
                name="model_call_of_turn",
            ),
        )

    def __str__(self) -> str:
        return f"model call {self.ordinal} ({self.model})"

    @property
    def is_failed(self) -> bool:
        return self.error_code not in ("", STOPPED)

    @property
    def usage(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
        )

    @property
    def prompt_tokens(self) -> int | None:
        """The tokens of the whole prompt, including those read from and written to the cache."""
        if self.input_tokens is None:
            return None
        return self.input_tokens + (self.cache_read_tokens or 0) + (self.cache_write_tokens or 0)


class LearntModel(models.Model):
    """A model's properties as learnt from the requests that its server refused or accepted.

    ``input_tokens`` is the limit of its input. ``takes`` maps names of
    :data:`~conversations.domain.stream.CAPABILITIES` to true or false. ``listed_tokens`` is the
    limit in the server's list at that time. If the list has another limit now, the server has been
    restarted meanwhile, and ``input_tokens`` no longer counts.
    """

    model = models.CharField(max_length=120, unique=True)
    listed_tokens = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveIntegerField(null=True)
    takes = models.JSONField(default=dict)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.model


class ToolCall(models.Model):
    """One call of a tool by the model, and its outcome.

    ``asked`` is the approval request that a person was shown (JSON, see ``domain.tool_calls``).
    ``decision`` and ``reason`` are the person's reply. ``question`` is the last question that the
    tool server asked during the call, and ``answer`` is a person's answer (see
    ``domain.tool_questions``). ``tree`` names the blob that lists the folder's files as they were
    before a command. It is cleared when the command's changes have been recorded.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="tool_calls", db_index=False
    )
    run = models.ForeignKey(
        Run, on_delete=models.PROTECT, related_name="tool_calls", db_index=False
    )
    call_id = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    arguments = models.TextField(default="{}", db_default="{}")
    state = models.CharField(max_length=20)
    ok = models.BooleanField(null=True)
    turn_number = models.BigIntegerField()
    result_turn = models.BigIntegerField(null=True)
    duration_ms = models.IntegerField(null=True)
    created_at = models.DateTimeField()
    asked = models.TextField(default="", db_default="")
    asked_at = models.DateTimeField(null=True)
    decision = models.CharField(max_length=8, default="", db_default="")
    decided_by = actor_field()
    decided_at = models.DateTimeField(null=True)
    reason = models.TextField(default="", db_default="")
    started_at = models.DateTimeField(null=True)
    stop_requested_at = models.DateTimeField(null=True)
    stop_requested_by = actor_field()
    tree = models.CharField(max_length=64, default="", db_default="")
    question = models.TextField(default="", db_default="")
    answer = models.TextField(default="", db_default="")

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(fields=("run", "turn_number", "call_id"), name="tool_call_unique"),
            CheckConstraint(condition=Q(state__in=TOOL_CALL_STATES), name="tool_call_state_known"),
            CheckConstraint(
                condition=Q(decision__in=("", *DECISIONS)), name="tool_call_decision_known"
            ),
        )
        indexes = (
            Index(fields=("session", "id"), name="tool_call_of_session"),
            Index(fields=("call_id",), name="tool_call_by_id"),
            Index(fields=("run", "id"), condition=Q(state__in=OPEN_STATES), name="tool_call_open"),
            Index(fields=("id",), condition=~Q(tree=""), name="tool_call_unsettled"),
            Index(fields=("session",), condition=Q(ok=False), name="tool_call_failed"),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.state})"


class DraftChunk(models.Model):
    """A piece of an answer that is still streaming, removed when its turn is committed."""

    run = models.ForeignKey(
        Run, on_delete=models.PROTECT, related_name="draft_chunks", db_index=False
    )
    ordinal = models.BigIntegerField()
    part = models.IntegerField()
    kind = models.CharField(max_length=32)
    text = models.TextField()

    class Meta:
        ordering = ("run", "ordinal")
        constraints = (UniqueConstraint(fields=("run", "ordinal"), name="draft_chunk_unique"),)

    def __str__(self) -> str:
        return f"draft chunk {self.ordinal}"
