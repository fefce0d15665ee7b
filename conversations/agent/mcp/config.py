"""The configuration of the servers: a JSON file that is read once at the start.

::

    {"servers": {"files": {"command": "npx", "args": ["…"], "env": {"TOKEN": "${MY_TOKEN}"}},
                 "tickets": {"url": "https://…/mcp", "headers": {…}, "effect": "reads"}},
     "workspaces": {"garden": {"servers": {…}, "off": ["tickets"]}}}
"""

import json
import re
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conversations.domain.messages import say
from conversations.domain.tool_calls import CHANGES, EFFECTS

DEFAULT_CALL_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,30}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STDIO = {"command", "args", "env", "folder", "sandbox", "network"}
_HTTP = {"url", "headers", "oauth"}
_OAUTH = {"client_id", "client_secret", "scopes", "grant", "issuer"}
_COMMON = {"timeout_seconds", "effect", "trust_hints", "tools", "sampling"}
_SAMPLING = {"max_requests": (5, 100), "max_tokens": (1000, 100_000)}  # Default and maximum


# Asks a person on behalf of a server: takes the server's parameters, and returns the result.
type Ask = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class ConfigError(Exception):
    """The file cannot be used. The text is a sentence that says where and why."""


class McpError(Exception):
    """An error of a server. ``message`` is a sentence for people and for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ServerFailed(McpError):
    """The connection cannot be made, or has been lost."""


class SignInNeeded(ServerFailed):
    """A person has to sign in at the server's authorization server."""

    def __init__(self) -> None:
        super().__init__(say("Sign-in required."))


class CallRefused(McpError):
    """The server answered this request with an error. The connection is still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantStore:
    """Access to a server's stored grant, see :mod:`conversations.archive.tool_server_grants`.

    Only one process at a time can hold ``refresh_lock``.
    """

    read: Callable[[], Awaitable[dict[str, Any]]]
    save: Callable[..., Awaitable[None]]
    replace: Callable[..., Awaitable[None]]
    refresh_lock: Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """The configuration for a server's authorization server.

    Without a ``client_id``, a client is registered there. ``is_own_account`` is true if the client
    signs in as itself (``client_credentials``) and not as a person.
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scopes: str = ""
    issuer: str = ""
    is_own_account: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLimits:
    """How often a server may call the model during a call, and how long an answer may be."""

    max_requests: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The configuration of one server: a ``command`` to run, or a ``url`` to connect to.

    ``folder`` is where the command runs; None stands for the workspace's folder. With ``sandbox``,
    the command has access to that folder only, and to the network only with ``network``. ``effect``
    is the effect of the server's tools. With ``trust_hints``, a tool that the server marks as
    read-only only reads. ``tools`` are the names of the tools to offer, or None for all. With
    ``sampling``, the server may call the model if a person approves.
    """

    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    sandbox: bool = False
    network: bool = False
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    oauth: OAuthConfig = OAuthConfig()
    timeout_seconds: float = DEFAULT_CALL_SECONDS
    effect: str = CHANGES
    trust_hints: bool = False
    tools: frozenset[str] | None = None
    sampling: SamplingLimits | None = None

    @property
    def is_program(self) -> bool:
        return bool(self.command)

    @property
    def transport(self) -> str:
        return "stdio" if self.is_program else "HTTP"

    @property
    def can_sign_in(self) -> bool:
        """Whether a person can sign in, which requires that no other credentials are configured."""
        names = {name.lower() for name in self.headers}
        return bool(self.url) and "authorization" not in names and not self.oauth.is_own_account


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """The configured servers.

    ``own`` are additional servers of workspaces, and ``off`` names the servers that a workspace
    does not use. ``warning`` is a sentence about a problem of the file that has done no harm yet.
    """

    servers: Mapping[str, ServerConfig] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, ServerConfig]] = field(default_factory=dict)
    off: Mapping[str, frozenset[str]] = field(default_factory=dict)
    warning: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.servers and not any(self.own.values())

    def servers_of(self, workspace: str, *, off: bool = False) -> list[ServerConfig]:
        """Return the servers of a workspace by name, without those that are off, or only those.

        A workspace's own server replaces one of the installation with the same name.
        """
        servers = {**self.servers, **self.own.get(workspace, {})}
        hidden = self.off.get(workspace, frozenset())
        return [servers[name] for name in sorted(servers) if (name in hidden) == off]

    def is_own(self, workspace: str, name: str) -> bool:
        return name in self.own.get(workspace, {})


def read_config(path: Path, *, environment: Mapping[str, str]) -> McpConfig:
    """Read the servers from a file. There are none if it does not exist. Raise ConfigError."""
    try:
        mode = path.stat().st_mode
        data = json.loads(path.read_text(encoding="utf-8"))
        config = parse_config(data, environment=environment)
    except FileNotFoundError:
        return McpConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}).") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error}).") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    servers = [
        server for group in (config.servers, *config.own.values()) for server in group.values()
    ]
    holds_secrets = any(
        server.environment or server.headers or server.oauth.client_secret for server in servers
    )
    if holds_secrets and mode & (stat.S_IRGRP | stat.S_IROTH):
        # Secrets belong into a file that only its owner can read.
        warning = f"{path} can be read by others on this machine: chmod 600 it."
        return replace(config, warning=warning)
    return config


def parse_config(data: Any, *, environment: Mapping[str, str]) -> McpConfig:
    """Read the servers from the file's JSON. Raise ConfigError if it is invalid."""
    data = _table(data, "the file", {"servers", "workspaces"})
    workspaces = _table(data.get("workspaces", {}), "workspaces")
    workspace_servers = {}
    disabled = {}
    for slug, entry in workspaces.items():
        where = f"workspaces.{slug}"
        workspace = _table(entry, where, {"servers", "off"})
        workspace_servers[slug] = _servers(
            workspace.get("servers", {}), f"{where}.servers", environment
        )
        disabled[slug] = frozenset(_texts(workspace.get("off", []), f"{where}.off"))
    servers = _servers(data.get("servers", {}), "servers", environment)
    return McpConfig(servers=servers, own=workspace_servers, off=disabled)


def _servers(data: Any, where: str, environment: Mapping[str, str]) -> dict[str, ServerConfig]:
    servers = {}
    for name, server in _table(data, where).items():
        if not _NAME.fullmatch(name) or "__" in name:
            raise ConfigError(
                f"{where}: {name!r} is not a valid server name. Use letters, digits, single _ "
                "and -, at most 32, with a letter or digit at both ends."
            )
        place = f"{where}.{name}"
        entry = _table(server, place)
        if ("command" in entry) == ("url" in entry):
            raise ConfigError(f"{place} needs either a command or a url.")
        keys, read = (_STDIO, _program) if "command" in entry else (_HTTP, _address)
        _table(entry, place, _COMMON | keys)
        effect = entry.get("effect", CHANGES)
        if effect not in EFFECTS:
            raise ConfigError(f"{place}.effect must be one of {', '.join(EFFECTS)}.")
        seconds = entry.get("timeout_seconds", DEFAULT_CALL_SECONDS)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 1 <= seconds <= 3600:
            raise ConfigError(f"{place}.timeout_seconds must be a number from 1 to 3600.")
        tools = entry.get("tools")
        servers[name] = ServerConfig(
            name=name,
            timeout_seconds=float(seconds),
            effect=effect,
            trust_hints=_flag(entry, "trust_hints", place),
            tools=None if tools is None else frozenset(_texts(tools, f"{place}.tools")),
            sampling=_read_sampling(entry.get("sampling"), f"{place}.sampling"),
            **read(entry, place, environment),
        )
    return servers


def _read_sampling(data: Any, where: str) -> SamplingLimits | None:
    if data is None:
        return None
    table = _table(data, where, _SAMPLING)
    limits = {name: table.get(name, default) for name, (default, _) in _SAMPLING.items()}
    for name, (_, maximum) in _SAMPLING.items():
        if type(limits[name]) is not int or not 1 <= limits[name] <= maximum:
            raise ConfigError(f"{where}.{name} must be a whole number from 1 to {maximum}.")
    return SamplingLimits(**limits)


def _program(
    entry: Mapping[str, Any], where: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    command = _text(entry["command"], f"{where}.command")
    args = _texts(entry.get("args", []), f"{where}.args")
    folder = None
    if "folder" in entry:
        folder = Path(_text(entry["folder"], f"{where}.folder")).expanduser()
        if not folder.is_dir() or not folder.is_absolute():
            raise ConfigError(
                f"{where}.folder: {folder} is not an absolute path of an existing folder."
            )
    words = (command, *(_filled(arg, f"{where}.args", environment) for arg in args))
    values = {
        "command": words,
        "environment": _filled_table(entry.get("env", {}), f"{where}.env", environment),
        "folder": folder,
        "sandbox": _flag(entry, "sandbox", where),
        "network": _flag(entry, "network", where),
    }
    if "network" in entry and not values["sandbox"]:
        raise ConfigError(f"{where}.network applies only to a sandbox: add sandbox, or remove it.")
    return values


def _address(
    entry: Mapping[str, Any], where: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    url = _text(entry["url"], f"{where}.url")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigError(f"{where}.url: {url!r} is not an http or https URL.")
    headers = _filled_table(entry.get("headers", {}), f"{where}.headers", environment)
    for name, value in headers.items():
        if not (name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise ConfigError(f"{where}.headers: {name!r} cannot be sent as a header.")
    oauth = _read_oauth(entry.get("oauth", {}), f"{where}.oauth", environment)
    return {"url": url, "headers": headers, "oauth": oauth}


def _read_oauth(data: Any, where: str, environment: Mapping[str, str]) -> OAuthConfig:
    values = {name: _text(data[name], f"{where}.{name}") for name in _table(data, where, _OAUTH)}
    grant = values.pop("grant", "authorization_code")
    if grant not in ("authorization_code", "client_credentials"):
        words = "authorization_code or client_credentials"
        raise ConfigError(f"{where}.grant must be {words}.")
    is_own_account = grant == "client_credentials"
    if is_own_account and not {"client_id", "client_secret", "issuer"} <= values.keys():
        raise ConfigError(f"{where} needs client_id, client_secret and issuer for this grant.")
    secret = _filled(values.pop("client_secret", ""), f"{where}.client_secret", environment)
    return OAuthConfig(client_secret=secret, is_own_account=is_own_account, **values)


def _filled_table(data: Any, where: str, environment: Mapping[str, str]) -> dict[str, str]:
    filled = {}
    for name, value in _table(data, where).items():
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"{where}: {name!r} is not a valid name.")
        filled[name] = _filled(_text(value, f"{where}.{name}"), f"{where}.{name}", environment)
    return filled


def _filled(text: str, where: str, environment: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` by the variable of this server's environment."""
    for name in _VARIABLE.findall(text):
        if name not in environment:
            raise ConfigError(f"{where}: the environment variable {name} is not set.")
    return _VARIABLE.sub(lambda match: environment[match[1]], text)


def _table(data: Any, where: str, known_keys: Collection[str] = ()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must be an object.")
    if known_keys and (unknown := sorted(data.keys() - set(known_keys))):
        allowed = ", ".join(sorted(known_keys))
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}. Known keys: {allowed}.")
    return data


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{where} must be a non-empty text.")
    return value


def _texts(value: Any, where: str) -> list[str]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list of texts.")
    return [_text(item, where) for item in value]


def _flag(entry: Mapping[str, Any], name: str, where: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.{name} must be true or false.")
    return value
