"""The options of the runtime, as plain values."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from django.conf import settings

from conversations.agent.mcp.config import McpConfig
from conversations.agent.mcp.connection import ConnectionTiming
from conversations.domain.stream import ModelInfo
from conversations.domain.windows import WindowRules
from conversations.providers.config import ProviderConfig, make_model
from conversations.providers.model_limits import PriceList


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Options of the runtime. Times are in seconds unless the name says otherwise.

    Fields that have the name of a setting have its value. With ``supervise``, the runtime looks
    after the runs of all sessions, as a server does, and not only after its own, as a command does.
    """

    data_dir: Path
    providers: tuple[ProviderConfig, ...]
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
    title_model: str
    compact_model: str
    compact_at: int
    compact_tokens: int
    compact_max_calls: int
    max_queued: int
    prices: PriceList
    redis_url: str
    mcp: McpConfig
    mcp_timing: ConnectionTiming
    supervise: bool
    expire_minutes: int
    database_wait: float
    max_sockets: int
    max_streams: int


def read_options(*, supervise: bool) -> RuntimeOptions:
    """Return the options from the settings."""
    loom = settings.LOOM
    names = [field.name for field in fields(RuntimeOptions)]
    unchanged = {name: getattr(loom, name) for name in names if hasattr(loom, name)}
    values: dict[str, Any] = unchanged | {
        "models": tuple(map(make_model, dict.fromkeys(filter(None, [loom.model, *loom.models])))),
        "delta_interval": loom.delta_interval_ms / 1000,
        "draft_interval": loom.draft_interval_ms / 1000,
        "heartbeat": loom.heartbeat_seconds,
        "stale_after": loom.stale_seconds,
        "watch_interval": loom.watch_seconds,
        "rules": WindowRules(
            strategy=loom.window_strategy,
            keep_recent=loom.keep_recent,
            high_water=loom.high_water / 100,
            low_water=loom.low_water / 100,
            message_share=loom.message_share / 100,
            result_share=loom.result_share / 100,
        ),
        "mcp_timing": ConnectionTiming(wait=loom.mcp_wait_seconds),
        "database_wait": loom.database_wait_seconds,
    }
    return RuntimeOptions(**values, supervise=supervise)
