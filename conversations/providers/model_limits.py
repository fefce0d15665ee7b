"""Limits, capabilities and prices of models.

The limits here are for models whose server does not name them. The figures for Claude models are
from the provider's pages on each model
(platform.claude.com/docs/en/models/<model>/overview, November 2026). The window of an unknown model
is set low, because a window that is too small only costs recall, while one that is too large makes
every long session fail.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from conversations.domain.stream import DOCUMENTS, IMAGES, TOOLS, ModelInfo, Usage
from conversations.domain.text import an_object


class ModelLimits(NamedTuple):
    """Limits in tokens."""

    input_tokens: int
    output_tokens: int


UNKNOWN_MODEL = ModelLimits(32_768, 4_096)

# The longest prefix of the id counts.
LIMITS_BY_PREFIX = {
    "claude-": ModelLimits(200_000, 8_192),
    "claude-haiku-4-5": ModelLimits(200_000, 64_000),
    "claude-sonnet-4-5": ModelLimits(200_000, 64_000),
    "claude-opus-4-5": ModelLimits(200_000, 64_000),
    "claude-sonnet-4-6": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-6": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-7": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-8": ModelLimits(1_000_000, 128_000),
    "claude-haiku-5": ModelLimits(1_000_000, 128_000),
    "claude-sonnet-5": ModelLimits(1_000_000, 128_000),
    "claude-opus-5": ModelLimits(1_000_000, 128_000),
    "claude-fable-5": ModelLimits(1_000_000, 128_000),
    "claude-mythos-5": ModelLimits(1_000_000, 128_000),
}

# Keys of the figures: the Messages API, LM Studio's loaded model, OpenRouter, vLLM, LM Studio,
# llama.cpp (below ``meta``)
INPUT_KEYS = (
    "max_input_tokens",
    "loaded_context_length",
    "context_length",
    "max_model_len",
    "max_context_length",
    "n_ctx",
)
OUTPUT_KEYS = ("max_tokens", "max_output_tokens")

# Servers' names of capabilities: the Messages API, Ollama, LM Studio, llama.cpp, OpenRouter,
# Mistral
CAPABILITY_OF = {
    "image_input": IMAGES,
    "vision": IMAGES,
    "multimodal": IMAGES,
    "image": IMAGES,
    "pdf_input": DOCUMENTS,
    "file": DOCUMENTS,
    "tools": TOOLS,
    "tool_use": TOOLS,
    "function_calling": TOOLS,
    "thinking": "thinking",
    "reasoning": "thinking",
}

# The ability to chat, which some models of a list lack according to their type (LM Studio,
# Together) or their id
CHAT = "chat"
OTHER_TYPES = ("embeddings", "embedding", "rerank", "moderation", "image", "audio", "transcribe")
OTHER_IDS = re.compile(
    r"embed|rerank|\b(tts|whisper|transcribe|moderation|realtime|dall-e|imagen|sora|veo|bge)\b"
    r"|gpt-image|gpt-(4o-(mini-)?)?audio|minilm|turbo-instruct|(davinci|babbage)-002",
    re.IGNORECASE,
)


def find_limits(model_id: str) -> ModelLimits:
    prefixes = [prefix for prefix in LIMITS_BY_PREFIX if model_id.startswith(prefix)]
    return LIMITS_BY_PREFIX[max(prefixes, key=len)] if prefixes else UNKNOWN_MODEL


def read_figure(entry: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def read_capabilities(entry: Mapping[str, Any]) -> dict[str, bool]:
    """Return the :data:`~conversations.domain.stream.CAPABILITIES` in a server's entry.

    If the entry lists what a model can do, the capabilities that are not listed are False."""
    listed = entry.get("capabilities")
    capabilities: dict[str, bool] = {}
    if isinstance(listed, dict):
        for name, value in listed.items():
            value = value.get("supported") if isinstance(value, dict) else value
            if name in CAPABILITY_OF and isinstance(value, bool):
                capabilities[CAPABILITY_OF[name]] = value
    elif isinstance(listed, list) and "completion" in listed:  # Ollama, llama.cpp
        names = {CAPABILITY_OF.get(str(name)) for name in listed}
        capabilities[IMAGES] = IMAGES in names
        if entry.get("owned_by") == OLLAMA_OWNER:
            capabilities |= {name: name in names for name in (TOOLS, "thinking")}
    elif isinstance(listed, list):  # LM Studio
        capabilities[TOOLS] = "tool_use" in listed
    if entry.get("type") in ("llm", "vlm"):
        capabilities[IMAGES] = entry["type"] == "vlm"
    architecture = entry.get("architecture")
    if isinstance(architecture, dict) and isinstance(architecture.get("input_modalities"), list):
        names = {CAPABILITY_OF.get(str(name)) for name in architecture["input_modalities"]}
        capabilities |= {name: name in names for name in (IMAGES, DOCUMENTS)}
    if isinstance(entry.get("supported_parameters"), list):
        names = {CAPABILITY_OF.get(str(name)) for name in entry["supported_parameters"]}
        capabilities |= {name: name in names for name in (TOOLS, "thinking")}
    is_embedding = isinstance(listed, list) and "embedding" in listed and "completion" not in listed
    if is_embedding or entry.get("type") in OTHER_TYPES:
        capabilities[CHAT] = False
    return capabilities


def can_chat(model: ModelInfo) -> bool:
    return model.takes.get(CHAT, True) and not OTHER_IDS.search(model.id)


OLLAMA_OWNER = "library"  # Ollama's name for the author of its models


def read_entries(body: object) -> list[dict[str, Any]]:
    """Return the entries of a server's list of models. Raise ValueError for other shapes.

    The known shapes are ``{"data": [...]}`` (the Messages API, OpenAI-like servers; null if there
    are none), ``{"models": [...]}`` and a bare list.
    """
    if isinstance(body, dict) and ("data" in body or "models" in body):
        body = body.get("data") or body.get("models") or []
    if not isinstance(body, list):
        raise ValueError("no list of models")
    return [entry for entry in body if isinstance(entry, dict)]


def read_models(body: object) -> list[ModelInfo]:
    """Return the models in a server's list, in its order, without retired models.

    Raise ValueError if it is not a list."""
    models = []
    for entry in read_entries(body):
        model_id = entry.get("id")
        if not isinstance(model_id, str) or not model_id or entry.get("lifecycle") == "retired":
            continue
        name = entry.get("display_name") or entry.get("name")
        defaults = find_limits(model_id)
        limit = read_figure(entry, INPUT_KEYS)
        limit = limit or read_figure(an_object(entry.get("meta")), INPUT_KEYS)
        models.append(
            ModelInfo(
                id=model_id,
                name=name if isinstance(name, str) and name else model_id,
                max_input_tokens=limit or defaults.input_tokens,
                max_output_tokens=read_figure(entry, OUTPUT_KEYS) or defaults.output_tokens,
                is_limit_known=limit is not None,
                takes=read_capabilities(entry),
            )
        )
    return models


def read_next_page(body: object) -> str | None:
    if isinstance(body, dict) and body.get("has_more") is True:
        last = body.get("last_id")
        return last if isinstance(last, str) and last else None
    return None


SAMPLING = ("temperature", "top_p", "top_k")

# The ids also have forms of gateways: claude-opus-4.6, claude-opus-4@20250514,
# claude-sonnet-4.5:beta.
_TAKING = re.compile(
    r"claude-(?:instant|2|3)"
    r"|claude-(?:opus|sonnet|haiku)-4(?:[-.][0-6])?(?:[-@]\d{8}|-latest)?(?::\w+)?$"
)


def is_claude(model: str) -> bool:
    """Return whether it is a Claude model, from any provider."""
    return _own_id(model).startswith("claude-")


def takes_sampling(model: str) -> bool:
    """Return whether a model accepts the parameters of ``SAMPLING``."""
    # Claude models accept them up to the generation 4.6; later ones refuse a request that has any
    # (platform.claude.com, "What's new in Claude Opus 4.7"). Other models are sent the parameters,
    # and may refuse them.
    return not is_claude(model) or _TAKING.match(_own_id(model)) is not None


def _own_id(model: str) -> str:
    return model.rpartition("/")[2]


# The cost of a model call by list prices: ours in ``prices.toml``, and those of the installation in
# a file of the same form, which take precedence.
PRICES = Path(__file__).with_name("prices.toml")

# Multiples of the input price for the Messages API's cache, if no others are given (the source is
# named in ``prices.toml``)
CACHE_WRITE_FACTORS: Mapping[str, float] = {"5m": 1.25, "1h": 2.0}
CACHE_READ_FACTOR = 0.1

# The date at the end of the id of a model's snapshot, and the end of the newest one's id
_SNAPSHOT = re.compile(r"-(20\d{6}|latest)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices in US dollars per million tokens, which is millionths of a dollar per token.

    ``cache_write`` is by how long the cache keeps the tokens. A duration that it lacks costs as
    much as input."""

    since: date
    input: float
    output: float
    cache_write: dict[str, float]
    cache_read: float


# The prices of models, the newest first for each
type PriceList = Mapping[str, tuple[Price, ...]]


def find_cost(
    prices: PriceList,
    model: str,
    usage: Usage,
    *,
    answered_as: str = "",
    lifetime: str = "5m",
    day: date | None = None,
) -> int | None:
    """Return the cost in millionths of a US dollar, or None if the price or the usage is unknown.

    ``answered_as`` is the model's own name, which may have a price if ``model`` is an alias without
    one. ``lifetime`` is how long tokens that are written to the cache stay there. ``day`` is the
    day of the call (UTC, today by default)."""
    price = price_of(prices, model, day=day) or price_of(prices, answered_as, day=day)
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return round(
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + (usage.cache_write_tokens or 0) * price.cache_write.get(lifetime, price.input)
        + (usage.cache_read_tokens or 0) * price.cache_read
    )


def price_of(prices: PriceList, model: str, *, day: date | None = None) -> Price | None:
    """Return the price on that day (UTC, today by default), or None if it is unknown."""
    model_prices = prices.get(model) or prices.get(_SNAPSHOT.sub("", model), ())
    day = day or datetime.now(UTC).date()
    return next((price for price in model_prices if price.since <= day), None)


def read_prices(path: Path | None = None) -> PriceList:
    """Return our prices, replaced by those of the installation's file where it has a model.

    Raise ValueError with a sentence that says what is wrong with the file."""
    prices = _read(PRICES)
    if path is not None:
        try:
            prices |= _read(path)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is not a valid price list: {reason}.") from error
    return prices


def _read(path: Path) -> dict[str, tuple[Price, ...]]:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    reading = float(table.get("cache_read", CACHE_READ_FACTOR))
    writing = table.get("cache_write", CACHE_WRITE_FACTORS)
    prices_by_model = {}
    for model, entries in table["models"].items():
        prices = []
        for entry in entries:
            since = entry.get("from", date.min)
            if type(since) is not date:
                raise TypeError("“from” must be a date such as 2026-11-01")
            prices.append(
                Price(
                    since=since,
                    input=float(entry["input"]),
                    output=float(entry["output"]),
                    cache_write={name: entry["input"] * factor for name, factor in writing.items()},
                    cache_read=entry["input"] * reading,
                )
            )
        prices_by_model[model] = tuple(sorted(prices, key=lambda price: price.since, reverse=True))
    return prices_by_model
