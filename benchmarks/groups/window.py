"""The window over a session of 2,000 exchanges with a model of 32,000 tokens.

Every request goes over HTTP to a server that validates it and counts the tokens that its cache
serves. The same turns are then assembled as an earlier design did it (the session state in the
system prompt, and turns from the newest back until the budget is full) and counted with the same
cache. The time to assemble a window is measured alternately for a very long and a short session.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.history import write_history
from benchmarks.script import SAMPLE_TOOL, make_script
from conversations.agent.tools.registry import TOOLS
from conversations.agent.window.messages import MessageCaps, WindowPiece, join_pieces, make_piece
from conversations.agent.window.window import Window
from conversations.archive.sessions import read_window_facts, save_floor
from conversations.archive.turns import walk_turns
from conversations.domain.stream import ModelInfo
from conversations.domain.text import load_json
from conversations.domain.turns import StoredTurn
from conversations.models import ModelCall, Session
from conversations.runtime.model_routing import make_window
from conversations.runtime.options import RuntimeOptions, read_options
from conversations.runtime.service import Runtime
from tests.wire.prompt_cache import PromptCache
from tests.wire.rules.prompt import count_tokens
from tests.wire.server import WireThread

MAX_INPUT_TOKENS = 32_000
SEED_OUTPUT_TOKENS = 8_000
"""Tokens that the earlier design reserves for the answer."""

MODEL = ModelInfo(
    id="claude-haiku-4-5", name="Small", max_input_tokens=MAX_INPUT_TOKENS, max_output_tokens=8_000
)
EXCHANGES, QUICK_EXCHANGES = 2_000, 200
OLD_TURNS, QUICK_OLD_TURNS, YOUNG_TURNS = 100_000, 20_000, 300
ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The requests of a session that the provider's server received.

    ``newest`` counts the exchanges whose message was in each of their requests.
    """

    requests: list[dict[str, Any]]
    refused: list[str]
    newest: int


def measure(bench: Bench) -> list[Figure]:
    logging.getLogger("conversations").setLevel(logging.WARNING)
    exchanges = QUICK_EXCHANGES if bench.is_quick else EXCHANGES
    session = bench.new_session()
    TOOLS[SAMPLE_TOOL.name] = SAMPLE_TOOL
    try:
        played = asyncio.run(_play(bench, session, exchanges))
    finally:
        del TOOLS[SAMPLE_TOOL.name]
    calls = list(ModelCall.objects.filter(run__session=session.pk).order_by("pk"))
    return [
        *_describe_play(calls, played, exchanges),
        *_seed_figures(session, calls, played),
        *_assembly(bench),
    ]


async def _play(bench: Bench, session: Session, exchanges: int) -> Played:
    wire = WireThread()
    wire.start()
    models = wire.server.models
    models[MODEL.id] = replace(
        models[MODEL.id], max_input_tokens=MAX_INPUT_TOKENS, max_tokens=8_000
    )
    runtime = Runtime(
        replace(
            read_options(supervise=True),
            data_dir=bench.data_dir / "runtime",
            providers=(wire.provider,),
            model=MODEL.id,
            models=(MODEL,),
        )
    )
    await runtime.start()
    newest = 0
    for number, exchange in enumerate(make_script(exchanges)):
        wire.enqueue(*exchange.scenarios)
        before = len(wire.requests)
        await runtime.send(
            session, client_id=f"client-{number:06}", text=exchange.text, user_pk=session.owner_id
        )
        await runtime.wait_idle(session.pk)
        newest += all(_has(body, exchange.text) for body in wire.requests[before:])
    await runtime.stop()
    refused = [exchange.error for exchange in wire.exchanges if exchange.error]
    await asyncio.to_thread(wire.stop)
    return Played(requests=wire.requests, refused=refused, newest=newest)


def _has(body: dict[str, Any], text: str) -> bool:
    return any(
        block.get("text") == text for message in body["messages"] for block in message["content"]
    )


def _describe_play(calls: list[ModelCall], played: Played, exchanges: int) -> list[Figure]:
    sizes = [count_tokens(body) + body["max_tokens"] for body in played.requests]
    floors = {load_json(call.manifest)["floor"] for call in calls}
    read, whole = _count(calls)
    return [
        Figure(name="exchanges", value=exchanges),
        Figure(name="model calls", value=len(calls)),
        Figure(name="requests refused", value=len(played.refused), at_most=0),
        Figure(name="largest request with its answer", value=max(sizes), at_most=MAX_INPUT_TOKENS),
        Figure(
            name="exchanges whose message was always there", value=played.newest, at_least=exchanges
        ),
        Figure(name="times that the floor moved", value=len(floors) - 1),
        Figure(name="mean request", value=whole / len(calls), unit="tokens"),
        Figure(name="read from the cache", value=100 * read / whole, unit="%", at_least=90),
    ]


def _count(calls: list[ModelCall]) -> tuple[int, int]:
    read = sum(call.cache_read_tokens or 0 for call in calls)
    rest = sum((call.input_tokens or 0) + (call.cache_write_tokens or 0) for call in calls)
    return read, read + rest


def _seed_figures(session: Session, calls: list[ModelCall], played: Played) -> list[Figure]:
    """Measure the same calls in the earlier design: complete requests with automatic caching."""
    pieces = [_whole(turn) for turn in _all_turns(session.pk)]
    cache, read, whole = PromptCache(), 0, 0
    for call, sent in zip(calls, played.requests, strict=True):
        body = _seed_body(pieces[: (call.turn_number or 1) - 1], sent, call.turn_number or 0)
        if body is not None:
            figures = cache.use("key", body)
            read += figures.read_tokens
            whole += count_tokens(body)
    empty = sum(
        _seed_body(pieces[: (call.turn_number or 1) - 1], sent, 0) is None
        for call, sent in zip(calls, played.requests, strict=True)
    )
    return [
        Figure(name="read from the cache, earlier design", value=100 * read / whole, unit="%"),
        Figure(name="calls without any message, earlier design", value=empty),
    ]


def _all_turns(session_pk: int) -> Iterator[StoredTurn]:
    number = None
    while page := walk_turns(session_pk, start=number, is_back=False, limit=500):
        yield from page
        number = page[-1].number


def _whole(turn: StoredTurn) -> WindowPiece:
    return make_piece(turn, model=MODEL.id, caps=MessageCaps(message=10**9, result=10**9))


def _seed_body(pieces: list[WindowPiece], sent: dict[str, Any], turn: int) -> dict[str, Any] | None:
    state = f"\n## Session State\nsession:\n  turn_count: {turn}\n"
    system = [{"type": "text", "text": sent["system"][0]["text"] + state}]
    used, taken = len(system[0]["text"]) // 4, list[WindowPiece]()
    for piece in reversed(pieces):
        if used + piece.cost > MAX_INPUT_TOKENS - SEED_OUTPUT_TOKENS:
            break
        used += piece.cost
        taken.append(piece)
    messages = join_pieces(reversed(taken))
    if not messages:
        return None
    control = {"type": "ephemeral"}
    return {
        "model": MODEL.id,
        "tools": sent["tools"],
        "system": system,
        "messages": messages,
        "cache_control": control,
    }


def _assembly(bench: Bench) -> list[Figure]:
    """Measure only the assembling, for a long session and a short one."""
    old, young = bench.new_session(), bench.new_session()
    write_history(old, turns=QUICK_OLD_TURNS if bench.is_quick else OLD_TURNS)
    write_history(young, turns=YOUNG_TURNS)
    options = read_options(supervise=False)
    sessions = (old.pk, young.pk)
    for pk in sessions:
        save_floor(pk, floor=assemble(pk, options).floor)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 else (1, 0):
            began = perf_counter()
            assemble(sessions[which], options)
            times[which].append(perf_counter() - began)
    queries = [_count_queries(pk, options) for pk in sessions]
    return [
        Figure(name="assembling, old session", value=1000 * median(times[0]), unit="ms"),
        Figure(
            name="assembling, old/young", value=median(times[0]) / median(times[1]), at_most=1.3
        ),
        Figure(name="queries, old", value=queries[0], at_most=queries[1]),
    ]


def assemble(session_pk: int, options: RuntimeOptions) -> Window:
    facts = read_window_facts(session_pk)
    return make_window(session_pk, facts, options, model=MODEL.id, limits=(20_000, 4_000))[1]


def _count_queries(session_pk: int, options: RuntimeOptions) -> int:
    with CaptureQueriesContext(connection) as queries:
        assemble(session_pk, options)
    return len(queries)
