"""Executing a compaction: a cheaper model writes a summary of older turns.

A compaction is a run like any other: a session has one run at a time, a person can stop it, and
recovery ends it if its process dies. Nothing changes until the summary and its row are saved
together. If anything fails, the run ends with a quiet notice and the session keeps its window.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from conversations.agent.window.budget import make_budget
from conversations.agent.window.fitting import cut_to_tokens
from conversations.agent.window.summary import (
    SYSTEM,
    CompactionPlan,
    SummaryCaps,
    SummaryTurn,
    count_stage,
    make_summary_request,
    plan_summary,
    summary_manifest,
)
from conversations.agent.window.window import digest_of
from conversations.archive.append import AppendResult, NewEvent, PreparedEvent, prepare_event
from conversations.archive.context import (
    CompactionRequest,
    append_compaction,
    read_request,
    read_useless_attempt,
)
from conversations.archive.messages import queued_messages
from conversations.archive.model_calls import check_model_call
from conversations.archive.runs import ClaimedRun, finish_run, make_interrupted_summary_notice
from conversations.archive.sessions import WindowFacts, read_window_facts
from conversations.archive.storage import is_storage_error
from conversations.domain import runs as states
from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.events import COMPACTED, Info
from conversations.domain.messages import Message, say
from conversations.domain.stream import MessageCompleted
from conversations.domain.text import estimate_tokens, number_text, storable
from conversations.domain.windows import (
    MANUAL,
    MIN_GAIN_SHARE,
    RETRY_GROWTH_SHARE,
    SUMMARIZE_AT_SHARE,
    THRESHOLD,
    tokens_at,
)
from conversations.models import Compaction

from .execution import Execution, RunContext, wait_before_try
from .model_routing import REPLACED_BY_OWN, rules_of, summarises
from .run_notices import sentence
from .side_calls import SideCall

logger = logging.getLogger(__name__)

# Share of the model's input limit that one stage may fill, as tokens are estimated
STAGE_SHARE = 0.6
OUTPUT_DIVISOR = 4  # A summary has at most a quarter of the model's window

MAX_CUTS = 4  # How often the budget is halved because the provider finds a stage too long

# Words that the prompt asks for, for each token that the summary may have. The share is low because
# models count words badly, and a summary that is cut off loses its last headings.
WORDS_PER_TOKEN = 0.6

FAILED, NOTHING = "compaction_failed", "nothing_to_compact"


class CompactionNotUseful(Exception):
    """There is nothing to summarise, or the summary would save too little."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


class CompactionPreempted(Exception):
    """A message of a person waits, and the summary was not requested by a person."""


@dataclass(slots=True)
class _Job:
    """The facts and the progress of a compaction whose run has begun.

    ``budget`` is the token limit of one stage, ``stages`` how many stages are still allowed and
    ``done_parts`` how many parts of the plan are summarised.
    """

    request: CompactionRequest
    facts: WindowFacts
    plan: CompactionPlan
    model: str
    own_model: str
    budget: int
    limit: int
    caps: SummaryCaps
    max_output: int
    stages: int
    done_parts: int = 0
    cuts: int = 0
    tries: int = 0

    @property
    def output(self) -> int:
        """The token limit of a summary. The next stage has at least as much room for its turns."""
        return min(self.max_output, self.limit // OUTPUT_DIVISOR, self.budget // 2)

    @property
    def room(self) -> int:
        """The tokens of turns that all stages can hold beside summaries of the greatest length."""
        summaries = self.stages - (self.plan.previous is None)
        return self.budget * self.stages - self.output * summaries

    @property
    def reached(self) -> int:
        if self.done_parts:
            return self.plan.parts[self.done_parts - 1].number
        return self.plan.previous.to_turn if self.plan.previous else 0


class CompactionExecution(Execution):
    """One compaction in this process. ``stop`` ends it without any change to the session."""

    def __init__(self, context: RunContext, claimed: ClaimedRun) -> None:
        super().__init__(context, claimed)
        self.doing = say("Summarizing older turns")
        self.is_asked_for = True

    async def execute(self) -> bool:
        work = await self._run_until_stopped(self._work())
        try:
            compaction, event = await work
        except asyncio.CancelledError:
            if not self._is_ended_by_person and await self._ends_only_with_process():
                await self._finish(states.INTERRUPTED, notice=make_interrupted_summary_notice())
            else:
                await self._finish(states.STOPPED)
        except CompactionPreempted:
            await self._finish(states.STOPPED)
        except CompactionNotUseful as reason:
            await self._end(states.COMPLETED, NOTHING, reason.message)
        except BudgetReached as error:
            await self._end(states.FAILED, error.code, error.message)
        except ProviderError as error:
            await self._end(
                states.FAILED,
                error.code,
                say("The summary failed: %(reason)s", reason=sentence(error.message)),
            )
        except Exception as error:
            if is_storage_error(error):
                raise  # writing the end of the run would fail, too
            logger.exception("run_failed", extra={"fields": {"run": self.run}})
            await self._end(states.FAILED, "internal_error", say("The summary failed."))
        else:
            appended = await self.writer.write(
                append_compaction, self.claimed, new=compaction, event=event
            )
            self._show_end(appended, states.COMPLETED)
            await self.context.publisher.publish_window(self.claimed.session_pk)
        return True

    async def _work(self) -> tuple[Compaction, PreparedEvent]:
        job = await self.context.database.readers.read(self._read_job)
        plan = job.plan
        if job.request.reason == THRESHOLD:
            expected = plan.stays + min(self.context.options.compact_tokens, plan.goes // 4)
            _require_gain(before=plan.stays + plan.goes, after=expected)
        doing = say("Summarizing turns %(first)s–%(last)s", first=plan.from_turn, last=plan.to_turn)
        self.show_state(self.state, doing=doing)
        summary = plan.previous.summary if plan.previous else ""
        while job.stages and job.done_parts < len(job.plan.parts):
            summary = await self._summarise_stage(job, summary)
            job.stages -= 1
        job.plan = job.plan.keep_oldest(job.done_parts, floor=job.facts.floor)
        return await asyncio.to_thread(self._complete, job, summary)

    def _read_job(self) -> _Job:
        models, session_pk = self.context.models, self.claimed.session_pk
        request, facts = read_request(self.claimed.run_pk), read_window_facts(session_pk)
        self.is_asked_for = request.reason == MANUAL
        if not self.is_asked_for and queued_messages(session_pk):
            raise CompactionPreempted
        own_model = models.model_for(facts.model)
        model = models.compact_model_for(own_model)
        limit, _ = models.limits_of(model)
        options = self.context.options
        output = min(options.compact_tokens, limit // OUTPUT_DIVISOR)
        budget = max(300, int((limit - output) * STAGE_SHARE))
        caps = SummaryCaps()
        caps = replace(caps, message=min(caps.message, budget // 2))
        plan = plan_summary(
            session_pk,
            has_rewinds=facts.rewinds > 0,
            floor=facts.floor,
            keep_recent=rules_of(facts, options.rules).keep_recent,
            most_tokens=budget * options.compact_max_calls,
            caps=caps,
        )
        if plan is None:
            raise CompactionNotUseful(say("There is nothing to summarize yet."))
        return _Job(
            request=request,
            facts=facts,
            plan=plan,
            model=model,
            own_model=own_model,
            budget=budget,
            limit=limit,
            caps=caps,
            max_output=options.compact_tokens,
            stages=options.compact_max_calls,
        )

    async def _summarise_stage(self, job: _Job, summary: str) -> str:
        """Summarise as many of the remaining parts as fit into one request."""
        database = self.context.database
        while True:
            if job.facts.has_call_limits:
                await database.readers.read(
                    check_model_call, self.claimed.session_pk, person_pk=self.claimed.user_pk
                )
            if not job.done_parts:
                job.plan = job.plan.keep_newest(job.room)
            if estimate_tokens(summary) > job.output:
                summary = cut_to_tokens(summary, job.output)
            remaining = job.plan.parts[job.done_parts :]
            count = count_stage(remaining, budget=job.budget - estimate_tokens(summary))
            parts = remaining[:count]
            call = self._make_call(job, parts, summary)
            try:
                written = await call.ask(read_summary)
            except ProviderError as error:
                await self._prepare_retry(job, error)
            else:
                job.done_parts += len(parts)
                return written

    def _make_call(self, job: _Job, parts: Sequence[SummaryTurn], summary: str) -> SideCall:
        output, reached = job.output, job.reached
        word_count = int(output * WORDS_PER_TOKEN)
        request = make_summary_request(
            parts,
            previous=summary,
            to_previous=reached,
            model=job.model,
            words=word_count,
            output=output,
        )
        texts = {"system": SYSTEM} | ({"previous": summary} if summary else {})
        digests = {role: digest_of(text) for role, text in texts.items()}
        estimated = sum(part.tokens for part in parts) + estimate_tokens(summary + SYSTEM)
        manifest = summary_manifest(
            request,
            parts,
            digests=digests,
            to_previous=reached,
            words=word_count,
            estimated=estimated,
            limit=job.limit,
            caps=job.caps,
        )
        texts_by_digest = {digests[role]: text for role, text in texts.items()}
        return SideCall(self, request, manifest, estimated, texts_by_digest)

    async def _prepare_retry(self, job: _Job, error: ProviderError) -> None:
        """Change the next request or wait. Raise the error if neither can help."""
        too_long = error.code in ("context_window_exceeded", "request_too_large")
        if too_long and job.cuts < MAX_CUTS:
            job.cuts += 1
            job.budget = max(100, job.budget // 2)
        elif error.code in REPLACED_BY_OWN and job.model != job.own_model:
            job.model = job.own_model
            job.limit, _ = self.context.models.limits_of(job.model)
        elif error.transient and job.tries < self.context.options.provider_retries:
            job.tries += 1
            await asyncio.sleep(wait_before_try(error, job.tries))
        else:
            raise error

    def _complete(self, job: _Job, summary: str) -> tuple[Compaction, PreparedEvent]:
        plan, tokens = job.plan, estimate_tokens(summary)
        if job.request.reason == THRESHOLD:
            _require_gain(before=plan.stays + plan.goes, after=plan.stays + tokens)
        summarised = sum(part.tokens for part in plan.parts)
        if plan.previous:
            summarised += estimate_tokens(plan.previous.summary)
        if tokens >= summarised:
            raise CompactionNotUseful(
                say("The summary would be longer than the turns it replaces.")
            )
        compaction = Compaction(
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
        data = {
            "compaction": str(compaction.uuid),
            "from_turn": plan.from_turn,
            "to_turn": plan.to_turn,
            "before_tokens": plan.goes,
            "after_tokens": tokens,
            "model": compaction.model,
            "summary": summary,
        }
        if plan.goes > tokens:
            text = say(
                "Turns %(first)s–%(last)s are summarized for the model (%(before)s → %(after)s "
                "tokens).",
                first=plan.from_turn,
                last=plan.to_turn,
                before=number_text(plan.goes),
                after=number_text(tokens),
            )
        else:
            text = say(
                "Turns %(first)s–%(last)s are summarized for the model.",
                first=plan.from_turn,
                last=plan.to_turn,
            )
        row = NewEvent(payload=Info(text=text, code=COMPACTED, run=self.run, data=data))
        return compaction, prepare_event(row, session_uuid=self.claimed.session)

    async def _end(self, state: str, code: str, reason: str) -> None:
        """End the run without any change to the session.

        The notice says why if a person asked for the summary. If nobody did, only a failure is
        shown.
        """
        text = say("%(reason)s Nothing has changed.", reason=reason)
        notice = Info(text=text, code=FAILED if state == states.FAILED else code, run=self.run)
        is_shown = self.is_asked_for or state == states.FAILED
        await self._finish(state, code=code, notice=notice if is_shown else None)

    async def _finish(self, state: str, *, code: str = "", notice: Info | None = None) -> None:
        if self._commits:
            await asyncio.wait(self._commits)
        fields = {"run": self.run, "state": state, "error_code": code}
        logger.info("compaction_ended", extra={"fields": fields})
        appended = await self.writer.write(
            finish_run,
            self.claimed,
            state=state,
            payloads=[notice] if notice else [],
            error_code=code,
        )
        self._show_end(appended, state)

    def _show_end(self, appended: AppendResult, state: str) -> None:
        self.state, self.doing = state, ""
        self.show_rows(appended.rows)


def find_due_compaction(session_pk: int, context: RunContext) -> CompactionRequest | None:
    """Return a request to summarise the session if its window is full, else None.

    After an attempt that did not help, the window has to grow or its floor has to move before
    another attempt is made.
    """
    facts, options = read_window_facts(session_pk), context.options
    if not summarises(facts, options):
        return None
    model = context.models.model_for(facts.model)
    limit, output = context.models.limits_of(model)
    ratio = facts.token_ratio if facts.token_model == model else 0.0
    budget = make_budget(limit=limit, max_output=output, ratio=ratio)
    capacity = int(budget.tokens * budget.ratio)  # in the provider's tokens
    if options.compact_at:
        threshold = tokens_at(options.compact_at, limit=capacity)
    else:
        threshold = int(capacity * rules_of(facts, options.rules).high_water * SUMMARIZE_AT_SHARE)
    tokens = facts.context_tokens
    if tokens < threshold:
        return None
    if attempt := read_useless_attempt(session_pk):
        has_moved = 0 < attempt.floor < facts.floor
        if not has_moved and tokens < attempt.tokens * (1 + RETRY_GROWTH_SHARE):
            return None
    return CompactionRequest(reason=THRESHOLD, tokens=tokens, floor=facts.floor)


def read_summary(message: MessageCompleted) -> str:
    """Return the text of the summary in an answer. Raise ProviderError if there is none."""
    texts = [str(b.get("text", "")) for b in message.blocks if b.get("type") == "text"]
    text = storable("\n\n".join(texts)).strip()
    if not text or message.stop_reason == "refusal":
        raise ProviderError("The model wrote no summary.", code="empty_answer")
    if message.stop_reason == "max_tokens":
        text += "\n\n(The summary was cut off here at its limit.)"
    return text


def _require_gain(*, before: int, after: int) -> None:
    if after > before * (1 - MIN_GAIN_SHARE):
        raise CompactionNotUseful(say("A summary would save too little."))
