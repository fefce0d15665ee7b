"""The configuration of model servers, ``providers.toml``.

It names the servers, and models whose configured values differ from what the server says::

    [providers.local]
    kind = "openai"                       # anthropic, openai or openai-responses
    url = "http://127.0.0.1:8080/v1"
    key_env = "LOCAL_KEY"                 # the variable with the key, if it needs one

    [providers.local.models."qwen3:8b"]   # only what is known better than the server says
    name = "Qwen 3"
    input_tokens = 32768
    images = false
    price = { input = 0.5, output = 1.5 }

A model's id is ``local/qwen3:8b``. Only the provider that the environment's ``ANTHROPIC_API_KEY``
adds has models with their plain ids.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from conversations.domain.stream import CAPABILITIES, ModelInfo

from .model_limits import CACHE_READ_FACTOR, CACHE_WRITE_FACTORS, Price, PriceList, find_limits

ANTHROPIC, OPENAI, OPENAI_RESPONSES = "anthropic", "openai", "openai-responses"
KINDS = (ANTHROPIC, OPENAI, OPENAI_RESPONSES)
DEFAULT_URLS = {
    ANTHROPIC: "https://api.anthropic.com",
    OPENAI: "https://api.openai.com/v1",
    OPENAI_RESPONSES: "https://api.openai.com/v1",
}
NO_KEY = "none"  # The key that is sent to a server that needs none

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_KEYS = frozenset(("kind", "url", "key_env", "models"))
_MODEL_KEYS = frozenset(("name", "input_tokens", "output_tokens", "price", *CAPABILITIES))


class ProvidersError(ValueError):
    """The file cannot be used; the text is a sentence that says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfig:
    """The configuration of one provider.

    ``url`` is the base of its addresses. ``models`` are the configured values, by the server's
    model ids. If ``is_plain`` is set, the ids of its models have no prefix."""

    name: str
    kind: str
    url: str
    key_env: str = ""
    api_key: str = field(default=NO_KEY, repr=False)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_plain: bool = False

    def reference(self, model_id: str) -> str:
        """Return the id of a model in this product."""
        return model_id if self.is_plain else f"{self.name}/{model_id}"

    def describe(self, listed: ModelInfo) -> ModelInfo:
        """Return a model of the server's list with the configured values, which take precedence."""
        configured = self.models.get(listed.id, {})
        capabilities = {name: configured[name] for name in CAPABILITIES if name in configured}
        name = str(configured.get("name") or listed.name)
        if not self.is_plain and "name" not in configured:
            name = f"{name} ({self.name})"
        return replace(
            listed,
            id=self.reference(listed.id),
            name=name,
            provider=self.name,
            max_input_tokens=configured.get("input_tokens", listed.max_input_tokens),
            max_output_tokens=configured.get("output_tokens", listed.max_output_tokens),
            is_limit_known=listed.is_limit_known or "input_tokens" in configured,
            takes={**listed.takes, **capabilities},
        )

    def configured_models(self) -> list[ModelInfo]:
        """Return the models that the configuration names, in the form of a server's list."""
        return [make_model(model_id) for model_id in self.models]


def make_model(model_id: str) -> ModelInfo:
    limits = find_limits(model_id)
    return ModelInfo(
        id=model_id,
        name=model_id,
        max_input_tokens=limits.input_tokens,
        max_output_tokens=limits.output_tokens,
    )


def read_providers(
    given: Sequence[ProviderConfig], path: Path, environment: Mapping[str, str]
) -> tuple[ProviderConfig, ...]:
    """Return the given providers and those of the file, whose keys are in the environment.

    Raise ProvidersError."""
    from_file = read_file(path, environment) if path.is_file() else []
    names = {provider.name for provider in given}
    for provider in from_file:
        if provider.name in names:
            raise ProvidersError(
                f"{path}: the environment has a provider named {provider.name} already."
            )
    return (*given, *from_file)


def make_environment_providers(
    *, anthropic_key: str, anthropic_url: str, openai_key: str, openai_url: str
) -> list[ProviderConfig]:
    """Return the providers that need no file. Raise ProvidersError."""
    for name, url, example in (
        ("ANTHROPIC_BASE_URL", anthropic_url, "http://127.0.0.1:8080"),
        ("OPENAI_BASE_URL", openai_url, "http://127.0.0.1:8080/v1"),
    ):
        if url and not _URL.fullmatch(url):
            raise ProvidersError(f"{name} must be a URL such as {example}.")
    providers = []
    if anthropic_key.strip():
        providers.append(
            ProviderConfig(
                name=ANTHROPIC,
                kind=ANTHROPIC,
                url=anthropic_url or DEFAULT_URLS[ANTHROPIC],
                key_env="ANTHROPIC_API_KEY",
                api_key=anthropic_key.strip(),
                is_plain=True,
            )
        )
    if openai_key.strip() or openai_url:
        providers.append(
            ProviderConfig(
                name=OPENAI,
                kind=OPENAI,
                url=(openai_url or DEFAULT_URLS[OPENAI]).rstrip("/"),
                key_env="OPENAI_API_KEY" if openai_key.strip() else "",
                api_key=openai_key.strip() or NO_KEY,
            )
        )
    return providers


def read_file(path: Path, environment: Mapping[str, str]) -> list[ProviderConfig]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProvidersError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ProvidersError(f"{path} is not valid TOML: {error}.") from error
    providers = table.get("providers", {})
    if not isinstance(providers, dict) or set(table) - {"providers"}:
        raise ProvidersError(f"{path}: it must hold tables named [providers.NAME] and no more.")
    return [_read_provider(path, name, value, environment) for name, value in providers.items()]


def _read_provider(
    path: Path, name: str, table: Any, environment: Mapping[str, str]
) -> ProviderConfig:
    where = f"{path}: provider {name}"
    if not _NAME.fullmatch(name):
        raise ProvidersError(
            f"{where}: a name has 1 to 40 small letters, digits, - and _, and begins with one"
            " of the first two."
        )
    if not isinstance(table, dict):
        raise ProvidersError(f"{where}: it must be a table.")
    if unknown := set(table) - _KEYS:
        raise ProvidersError(f"{where}: {min(unknown)} is not known. Known: {_list(_KEYS)}.")
    kind = table.get("kind")
    if kind not in KINDS:
        raise ProvidersError(f"{where}: kind must be one of {', '.join(KINDS)}.")
    url, key_env = table.get("url", DEFAULT_URLS[kind]), table.get("key_env", "")
    if not isinstance(url, str) or not _URL.fullmatch(url) or "@" in url:
        raise ProvidersError(f"{where}: url must be a URL such as http://127.0.0.1:8080/v1.")
    if not isinstance(key_env, str):
        raise ProvidersError(f"{where}: key_env must be the name of an environment variable.")
    key = environment.get(key_env, "").strip() if key_env else NO_KEY
    if not key:
        raise ProvidersError(f"{where}: the environment variable {key_env} is not set.")
    models = table.get("models", {})
    if not isinstance(models, dict):
        raise ProvidersError(
            f'{where}: models must be tables named [providers.{name}.models."ID"].'
        )
    for model_id, model in models.items():
        _check_model(f"{where}, model {model_id}", model)
    return ProviderConfig(
        name=name, kind=kind, url=url.rstrip("/"), key_env=key_env, api_key=key, models=models
    )


def append_provider(path: Path, *, name: str, url: str) -> None:
    """Add a provider with OpenAI's protocol and without a key to the file.

    The file is created if it is missing. Raise ProvidersError."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        tables = tomllib.loads(text).get("providers", {})
        if name in tables:
            raise ProvidersError(f"{path}: there is a provider named {name} already.")
        text = f"{text.rstrip()}\n\n" if text.strip() else ""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(f'{text}[providers.{name}]\nkind = "{OPENAI}"\nurl = "{url}"\n')
        draft.replace(path)
    except OSError as error:
        raise ProvidersError(f"{path} cannot be written: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ProvidersError(f"{path} is not valid TOML: {error}.") from error


def _check_model(where: str, table: Any) -> None:
    if not isinstance(table, dict):
        raise ProvidersError(f"{where}: it must be a table.")
    if unknown := set(table) - _MODEL_KEYS:
        raise ProvidersError(f"{where}: {min(unknown)} is not known. Known: {_list(_MODEL_KEYS)}.")
    for name in ("input_tokens", "output_tokens"):
        if name in table and (type(table[name]) is not int or table[name] < 1):
            raise ProvidersError(f"{where}: {name} must be a number of tokens.")
    for name in CAPABILITIES:
        if name in table and not isinstance(table[name], bool):
            raise ProvidersError(f"{where}: {name} must be true or false.")
    price = table.get("price", {"input": 0, "output": 0})
    is_table = isinstance(price, dict) and set(price) == {"input", "output"}
    if not is_table or any(type(p) not in (int, float) or p < 0 for p in price.values()):
        raise ProvidersError(
            f"{where}: price must be {{ input = …, output = … }}, in US dollars per million tokens."
        )


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def read_provider_prices(providers: tuple[ProviderConfig, ...]) -> PriceList:
    """Return the prices in the providers' configuration, by the models' references."""
    prices = {}
    for provider in providers:
        write_factors: Mapping[str, float] = {}
        read_factor = 1.0
        if provider.kind == ANTHROPIC:
            write_factors, read_factor = CACHE_WRITE_FACTORS, CACHE_READ_FACTOR
        for model_id, model in provider.models.items():
            if table := model.get("price"):
                price = Price(
                    since=date.min,
                    input=float(table["input"]),
                    output=float(table["output"]),
                    cache_write={name: table["input"] * f for name, f in write_factors.items()},
                    cache_read=table["input"] * read_factor,
                )
                prices[provider.reference(model_id)] = (price,)
    return prices
