"""What the runtime is configured with, as plain values."""

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from conversations.agent.mcp.config import McpConfig
from conversations.agent.mcp.connection import Timing
from conversations.domain.stream import ModelInfo
from conversations.domain.windows import WindowRules
from conversations.providers.model_limits import PriceList, find_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Seconds, unless a name says otherwise. ``supervise``: look after the runs of
    all sessions (a server does), not only after one's own (a command does)."""

    data_dir: Path
    api_key: str
    base_url: str
    model: str
    models: tuple[ModelInfo, ...]
    max_input_tokens: int
    max_output_tokens: int
    provider_timeout: float
    provider_retries: int
    demo_delay: float
    delta_interval: float
    draft_interval: float
    heartbeat: float
    stale_after: float
    watch_interval: float
    max_model_calls: int
    rules: WindowRules
    prompt_cache: str
    compact_model: str
    compact_at: int
    compact_at_end: bool
    compact_tokens: int
    compact_max_calls: int
    max_queued: int
    prices: PriceList
    redis_url: str
    mcp: McpConfig
    mcp_timing: Timing
    supervise: bool
    expire_minutes: int = 0
    database_wait: float = 30.0
    max_sockets: int = 100
    max_streams: int = 100


def read_options(*, supervise: bool) -> RuntimeOptions:
    """The options that the settings ask for."""
    loom = settings.LOOM
    ids = dict.fromkeys([loom.model, *loom.models])
    return RuntimeOptions(
        data_dir=loom.data_dir,
        api_key=loom.api_key,
        base_url=loom.base_url,
        model=loom.model,
        models=tuple(_configured_model(model_id) for model_id in ids),
        max_input_tokens=loom.max_input_tokens,
        max_output_tokens=loom.max_output_tokens,
        provider_timeout=loom.provider_timeout,
        provider_retries=loom.provider_retries,
        demo_delay=loom.demo_delay,
        delta_interval=loom.delta_interval_ms / 1000,
        draft_interval=loom.draft_interval_ms / 1000,
        heartbeat=loom.heartbeat_seconds,
        stale_after=loom.stale_seconds,
        watch_interval=loom.watch_seconds,
        max_model_calls=loom.max_model_calls,
        rules=WindowRules(
            strategy=loom.window_strategy,
            keep_recent=loom.keep_recent,
            high_water=loom.high_water / 100,
            low_water=loom.low_water / 100,
            message_share=loom.message_share / 100,
            result_share=loom.result_share / 100,
        ),
        prompt_cache=loom.prompt_cache,
        compact_model=loom.compact_model,
        compact_at=loom.compact_at,
        compact_at_end=loom.compact_at_end,
        compact_tokens=loom.compact_tokens,
        compact_max_calls=loom.compact_max_calls,
        max_queued=loom.max_queued,
        max_sockets=loom.max_sockets,
        max_streams=loom.max_streams,
        prices=loom.prices,
        redis_url=loom.redis_url,
        mcp=loom.mcp,
        mcp_timing=Timing(wait=loom.mcp_wait_seconds),
        supervise=supervise,
        expire_minutes=loom.expire_minutes,
        database_wait=loom.database_wait_seconds,
    )


def _configured_model(model_id: str) -> ModelInfo:
    limits = find_limits(model_id)
    return ModelInfo(
        id=model_id,
        name=model_id,
        max_input_tokens=limits.input_tokens,
        max_output_tokens=limits.output_tokens,
    )
