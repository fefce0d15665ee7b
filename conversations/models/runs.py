"""Runs, and what they consist of: model calls, tool calls, the draft."""

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

# Of a run: it ended as nobody meant it to. SQLite finds the index of these by each comparison
# as it stands here, and not by a list of states.
BROKEN = Q(state=FAILED) | Q(state=INTERRUPTED)


def involving(user_pk: int, *, before: datetime | None = None) -> Q:
    """Of a session: this person owns it, or has asked for something in it, ``before`` then."""
    asked = Run.objects.filter(requested_by=user_pk)
    if before is not None:
        asked = asked.filter(created_at__lt=before)
    return Q(owner=user_pk) | Q(pk__in=asked.order_by().values("session"))


class Run(models.Model):
    """One piece of work by the model for one user message.

    A message that waits is a run in the state ``queued`` whose ``text`` is not a turn yet;
    ``user_turn`` is set when it becomes one. ``goes_first``: before the others that wait, and at
    the next tool call of the run that is active. ``from_seq`` is the run's first row, known when it
    begins (of runs of an earlier version that answered a message again: not known). ``choices`` is
    what a program asked of the answers (JSON, see ``domain.runs``)."""

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
        """The run's first row; None: it has none yet."""
        return self.from_seq or self.user_seq

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES


class ModelCall(models.Model):
    """One request to the provider, with what it was given. Times in milliseconds,
    cost in millionths of a US dollar; null: not reported. ``session`` is the run's:
    with it a turn's call is found at any age. ``stop_sequence`` is the text at which the
    answer ended, where it was told to."""

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
        """The whole prompt: what was read from the cache or written to it is a part of it."""
        if self.input_tokens is None:
            return None
        return self.input_tokens + (self.cache_read_tokens or 0) + (self.cache_write_tokens or 0)


class LearntModel(models.Model):
    """What a model server has told of a model by what it refused and took: how many tokens its
    input may have, and its :data:`~conversations.domain.stream.CAPABILITIES` (by name, true or
    false). ``listed_tokens`` is what the server's list said then: a server that says something
    else since has been started anew."""

    model = models.CharField(max_length=120, unique=True)
    listed_tokens = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveIntegerField(null=True)
    takes = models.JSONField(default=dict)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.model


class ToolCall(models.Model):
    """One call of a tool by the model, and what became of it.

    ``asked`` is what a person was shown when the policy asked (JSON, see ``domain.tool_calls``),
    ``decision`` and ``reason`` what was answered; ``question`` is what its tool server asked last
    in the middle of the call, ``answer`` what a person said to it (see ``domain.tool_questions``).
    ``tree`` names the blob that lists the folder's
    files as they were before a command, until what the command changed is on record."""

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
    """Text of an answer that is still streaming; removed when its turn commits."""

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
