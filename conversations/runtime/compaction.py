"""Executing a compaction: a cheaper model writes a summary of older turns.

It is a run like any other: one at a time in a session, to be stopped, and ended by
recovery if its process dies. Until the summary is kept, together with its row, nothing
has changed; whatever goes wrong is a quiet notice, and the window goes on without it.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from conversations.agent.window.budget import make_budget
from conversations.agent.window.summary import (
    SYSTEM,
    CompactionPlan,
    SummaryTurn,
    make_summary_request,
    plan_summary,
    summary_manifest,
    take_stage,
)
from conversations.agent.window.window import digest_of, request_digest
from conversations.archive.append import Appended, NewEvent, PreparedEvent, prepare_event
from conversations.archive.context import (
    CompactionRequest,
    append_compaction,
    read_request,
    read_useless_size,
)
from conversations.archive.messages import queued_messages
from conversations.archive.model_calls import (
    append_call,
    append_failed_call,
    check_model_call,
)
from conversations.archive.runs import Claimed, finish_run
from conversations.archive.sessions import WindowFacts, read_window_facts
from conversations.archive.storage import is_storage_error
from conversations.domain import runs as states
from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.events import COMPACTED, Info
from conversations.domain.stream import MessageCompleted, ModelRequest, Usage
from conversations.domain.text import estimate_tokens, storable
from conversations.domain.windows import (
    LEAST_GAIN,
    MANUAL,
    SUMMARIZE_AT,
    THRESHOLD,
    is_due,
    tokens_at,
)
from conversations.models import Compaction, ModelCall
from conversations.rendering.source_text import number_text

from .execution import Execution, RunContext
from .frames import rows_frame
from .models import rules_of, summarises
from .run_rows import sentence

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the first and at most before any further try."""

STAGE_SHARE = 0.6
"""Share of the model's input that one stage may fill, since tokens are estimated."""

MAX_CUTS = 4
"""How often a stage that the provider finds too long is made shorter."""

WORDS_PER_TOKEN = 0.6
"""How many words a summary is asked to have for each token that it may have; a model
counts words badly, and a summary that is cut off loses its last headings."""

FAILED, NOTHING = "compaction_failed", "nothing_to_compact"

REPLACED_BY_OWN = ("unknown_model", "permission")
"""Failures of the cheaper model after which the session's own one is asked."""


class NotWorthIt(Exception):
    """There is nothing to summarise, or the summary would save too little."""


class MadeWay(Exception):
    """Nobody asked for the summary, and a message of a person waits."""


@dataclass(slots=True)
class _Job:
    """What is known once the run has begun. ``budget`` is a stage's."""

    request: CompactionRequest
    facts: WindowFacts
    plan: CompactionPlan
    model: str
    own_model: str
    budget: int
    limit: int
    cuts: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One request and its record so far."""

    request: ModelRequest
    parts: Sequence[SummaryTurn]
    manifest: str


class CompactionExecution(Execution):
    """One compaction in this process. ``stop`` ends it and leaves all as it was."""

    def __init__(self, context: RunContext, claimed: Claimed) -> None:
        super().__init__(context, claimed)
        self.doing = "Summarising older turns"
        self.is_asked_for = True
        self._write = context.database.patient_writer.write
        self._ordinal = 0

    async def execute(self) -> bool:
        work = await self._run_until_stopped(self._work())
        try:
            compaction, event, record = await work
        except asyncio.CancelledError:
            await self._end(states.STOPPED, "stopped", "")
        except MadeWay:
            await self._end(states.STOPPED, "stopped", "")
        except NotWorthIt as reason:
            await self._end(states.COMPLETED, NOTHING, str(reason))
        except BudgetReached as error:
            await self._end(states.FAILED, error.code, error.message)
        except ProviderError as error:
            await self._end(
                states.FAILED, error.code, f"The summary failed: {sentence(error.message)}"
            )
        except Exception as error:
            if is_storage_error(error):
                raise  # the end of the run cannot be written either
            logger.exception("run_failed", extra={"fields": {"run": self.run}})
            await self._end(states.FAILED, "internal_error", "The summary failed.")
        else:
            appended = await self._write(
                append_compaction, self.claimed, new=compaction, event=event, call=record
            )
            self._announce(appended, states.COMPLETED)
            await self._context.publisher.publish_window(self.claimed.session_pk)
        return True

    async def _work(self) -> tuple[Compaction, PreparedEvent, ModelCall]:
        job = await self._prepare()
        previous = job.plan.previous
        summary, reached = (previous.summary, previous.to_turn) if previous else ("", 0)
        rest: Sequence[SummaryTurn] = job.plan.parts
        record: ModelCall | None = None
        while rest:
            if record is not None:
                await self._write(append_call, self.claimed, call=record)
            stage, message, record = await self._stage(job, rest, summary, reached)
            summary, reached = _summary_of(message), stage.parts[-1].number
            rest = rest[len(stage.parts) :]
        assert record is not None
        compaction = self._judge(job, summary)
        event = await asyncio.to_thread(self._make_row, compaction, job.plan)
        return compaction, event, record

    async def _prepare(self) -> _Job:
        job = await self._context.database.readers.read(self._read_job)
        plan = job.plan
        if job.request.reason == THRESHOLD:
            expected = plan.stays + min(self._context.options.compact_tokens, plan.goes // 4)
            _require_gain(before=plan.stays + plan.goes, after=expected)
        self.doing = f"Summarising turns {plan.from_turn}–{plan.to_turn}"
        self._publish(self.state_frame())
        return job

    def _read_job(self) -> _Job:
        models, session_pk = self._context.models, self.claimed.session_pk
        request, facts = read_request(self.claimed.run_pk), read_window_facts(session_pk)
        self.is_asked_for = request.reason == MANUAL
        if not self.is_asked_for and queued_messages(session_pk):
            raise MadeWay
        own_model = models.model_for(facts.model)
        model = models.compact_model_for(own_model)
        limit, _ = models.limits_of(model)
        options = self._context.options
        budget = max(500, int((limit - options.compact_tokens) * STAGE_SHARE))
        plan = plan_summary(
            session_pk,
            has_rewinds=facts.rewinds > 0,
            floor=facts.floor,
            keep_recent=rules_of(facts, options.rules).keep_recent,
            most_tokens=budget * options.compact_max_calls,
        )
        if plan is None:
            raise NotWorthIt("There is nothing to summarise yet.")
        return _Job(request, facts, plan, model, own_model, budget, limit)

    async def _stage(
        self, job: _Job, rest: Sequence[SummaryTurn], summary: str, reached: int
    ) -> tuple[_Stage, MessageCompleted, ModelCall]:
        while True:
            if job.facts.has_call_limits:
                await self._context.database.readers.read(
                    check_model_call,
                    self.claimed.session_pk,
                    person_pk=self.claimed.user_pk,
                )
            stage = self._make_stage(job, rest, summary, reached)
            began = monotonic()
            try:
                message = await self._ask(stage.request)
                _summary_of(message)
            except ProviderError as error:
                record = self._record(stage, None, began, error_code=error.code)
                await self._write(append_failed_call, self.claimed, call=record)
                await self._mend(job, error)
            else:
                return stage, message, self._record(stage, message, began)

    def _make_stage(
        self, job: _Job, rest: Sequence[SummaryTurn], summary: str, reached: int
    ) -> _Stage:
        options = self._context.options
        words = int(options.compact_tokens * WORDS_PER_TOKEN)
        parts = rest[: take_stage(rest, budget=job.budget - estimate_tokens(summary))]
        request = make_summary_request(
            parts,
            previous=summary,
            to_previous=reached,
            model=job.model,
            words=words,
            output=options.compact_tokens,
        )
        texts = {"system": SYSTEM} | ({"previous": summary} if summary else {})
        digests = {role: digest_of(text) for role, text in texts.items()}
        self._context.database.save_prompt_texts(
            {digests[role]: text for role, text in texts.items()}
        )
        manifest = summary_manifest(
            request,
            parts,
            digests=digests,
            to_previous=reached,
            words=words,
            estimated=sum(part.tokens for part in parts) + estimate_tokens(summary + SYSTEM),
            limit=job.limit,
        )
        return _Stage(request=request, parts=parts, manifest=manifest)

    async def _ask(self, request: ModelRequest) -> MessageCompleted:
        async with aclosing(self._context.models.provider.stream(request)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, MessageCompleted):
                    return item
        raise ProviderError("The summary broke off.", code="incomplete_stream", transient=True)

    async def _mend(self, job: _Job, error: ProviderError) -> None:
        """Change what is to be asked, or wait. Raises the error where neither helps."""
        too_long = error.code in ("context_window_exceeded", "request_too_large")
        if too_long and job.cuts < MAX_CUTS:
            job.cuts += 1
            job.budget = max(100, job.budget // 2)
        elif error.code in REPLACED_BY_OWN and job.model != job.own_model:
            job.model = job.own_model
            job.limit, _ = self._context.models.limits_of(job.model)
        elif error.transient and job.tries < self._context.options.provider_retries:
            job.tries += 1
            wait = error.retry_after
            if wait is None:
                wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (job.tries - 1))
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
        else:
            raise error

    def _judge(self, job: _Job, summary: str) -> Compaction:
        """The summary as it is kept. Raises NotWorthIt where it does not help."""
        plan, tokens = job.plan, estimate_tokens(summary)
        if job.request.reason == THRESHOLD:
            _require_gain(before=plan.stays + plan.goes, after=plan.stays + tokens)
        summarised = sum(part.tokens for part in plan.parts)
        if tokens >= summarised + (estimate_tokens(plan.previous.summary) if plan.previous else 0):
            raise NotWorthIt("The summary would be longer than what it stands for.")
        return Compaction(
            uuid=uuid4(),
            from_turn=plan.from_turn,
            to_turn=plan.to_turn,
            floor_before=job.facts.floor,
            summary=summary,
            model=job.model[:120],
            reason=job.request.reason,
            before_turns=plan.turns_before,
            after_turns=plan.turns_kept,
            before_tokens=plan.stays + plan.goes,
            after_tokens=plan.stays + tokens,
        )

    def _make_row(self, compaction: Compaction, plan: CompactionPlan) -> PreparedEvent:
        before = compaction.before_tokens - plan.stays
        after = compaction.after_tokens - plan.stays
        data = {
            "compaction": str(compaction.uuid),
            "from_turn": compaction.from_turn,
            "to_turn": compaction.to_turn,
            "before_tokens": before,
            "after_tokens": after,
            "model": compaction.model,
            "summary": compaction.summary,
        }
        text = f"Turns {compaction.from_turn}–{compaction.to_turn} are summarised for the model"
        if before > after:
            text += f" ({number_text(before)} → {number_text(after)} tokens)"
        payload = Info(text=f"{text}.", code=COMPACTED, run=self.run, data=data)
        return prepare_event(NewEvent(payload=payload), session_uuid=self.claimed.session)

    async def _end(self, state: str, code: str, reason: str) -> None:
        """The run is over and nothing has changed. Who asked for it is told why; an
        attempt that nobody asked for says so only if it failed."""
        fields = {"run": self.run, "state": state, "error_code": code}
        logger.info("compaction_ended", extra={"fields": fields})
        is_told = bool(reason) and (self.is_asked_for or state == states.FAILED)
        text = f"{reason} Nothing has changed."
        notice = Info(text=text, code=FAILED if state == states.FAILED else code, run=self.run)
        appended = await self._write(
            finish_run,
            self.claimed,
            state=state,
            payloads=[notice] if is_told else [],
            error_code="" if state == states.STOPPED else code,
        )
        self._announce(appended, state)

    def _announce(self, appended: Appended, state: str) -> None:
        self.state, self.doing = state, ""
        if appended.rows:
            self._publish(rows_frame(appended.rows))

    def _record(
        self,
        stage: _Stage,
        message: MessageCompleted | None,
        began: float,
        *,
        error_code: str = "",
    ) -> ModelCall:
        usage = message.usage if message else Usage()
        model = (message.model if message else "") or stage.request.model
        self._ordinal += 1
        return ModelCall(
            ordinal=self._ordinal - 1,
            model=model[:120],
            manifest=stage.manifest,
            request_digest=request_digest(stage.request),
            message_id=(message.message_id if message else "")[:128],
            stop_reason=(message.stop_reason if message else "")[:64],
            error_code=error_code,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_microusd=self._context.options.prices.find_cost(model, usage),
            duration_ms=int((monotonic() - began) * 1000),
        )


def find_due_compaction(session_pk: int, context: RunContext) -> CompactionRequest | None:
    """What to have summarised of a session because its window is full, if anything. The
    same window is not tried twice: after an attempt that did not help it has to grow."""
    facts = read_window_facts(session_pk)
    at = _threshold(facts, context)
    if at is None or facts.context_tokens < at:
        return None
    if not is_due(facts.context_tokens, at=at, tried=read_useless_size(session_pk)):
        return None
    return CompactionRequest(reason=THRESHOLD, tokens=facts.context_tokens)


def _threshold(facts: WindowFacts, context: RunContext) -> int | None:
    """The size of the window at which it is summarised, in the provider's tokens."""
    options, model = context.options, context.models.model_for(facts.model)
    if not summarises(facts, options):
        return None
    limit, output = context.models.limits_of(model)
    ratio = facts.token_ratio if facts.token_model == model else 0.0
    budget = make_budget(limit=limit, max_output=output, ratio=ratio)
    capacity = int(budget.tokens * budget.ratio)
    if options.compact_at:
        return tokens_at(options.compact_at, limit=capacity)
    return int(capacity * rules_of(facts, options.rules).high_water * SUMMARIZE_AT)


def _require_gain(*, before: int, after: int) -> None:
    if after > before * (1 - LEAST_GAIN):
        raise NotWorthIt("A summary would save too little.")


def _summary_of(message: MessageCompleted) -> str:
    """The text of a summary. Raises ProviderError for an answer that is none."""
    texts = [str(b.get("text", "")) for b in message.blocks if b.get("type") == "text"]
    text = storable("\n\n".join(texts)).strip()
    if not text or message.stop_reason == "refusal":
        raise ProviderError("The model wrote no summary.", code="empty_answer")
    if message.stop_reason == "max_tokens":
        text += "\n\n(The summary was cut off here at its limit.)"
    return text
