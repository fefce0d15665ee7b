"""The environment, read once and checked loudly.

Every setting of the product is declared here with its type, default and limits;
``docs/settings.md`` describes each, and a test holds the two together. A value
that cannot be read stops the start with one sentence that names it.
"""

import contextlib
import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from environs import Env
from environs.exceptions import EnvError
from marshmallow.validate import OneOf, Range, Regexp

from conversations.agent.mcp.config import ConfigError, read_config
from conversations.providers.model_limits import read_prices

BASE_DIR = Path(__file__).resolve().parent.parent


class SettingsError(SystemExit):
    """A setting cannot be used; its text is the sentence that the terminal shows."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"Loom Web cannot start: {sentence}")


def _read_secret_key(env: Env, data_dir: Path) -> str:
    """The key from the environment, else from the data folder, made on first use
    with file mode 0600."""
    given: str = env.str("LOOM_SECRET_KEY", "")
    if given:
        return given
    path = data_dir / "secret_key"
    if not path.exists():
        _write_once(path, secrets.token_urlsafe(50))
    return path.read_text().strip()


def _write_once(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all: of two
    processes that start at once, the first one's text stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror}).") from error
    finally:
        draft.unlink(missing_ok=True)


def _read_paths(setting: str, texts: list[str]) -> list[Path]:
    paths = [Path(text).expanduser() for text in texts]
    for path in paths:
        if not path.is_absolute():
            raise SettingsError(f"{setting} holds {path}, which is no absolute path.")
    return paths


def _read_secret_file(setting: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{setting} names {path}, which cannot be read.") from error


def _read_pairs(setting: str, texts: list[str]) -> dict[str, str]:
    """``theirs=ours`` as a table from theirs to ours."""
    pairs = [text.partition("=") for text in texts]
    for theirs, _, ours in pairs:
        if not (theirs.strip() and ours.strip()):
            raise SettingsError(f"{setting} is a list of the form theirs=ours,theirs=ours.")
    return {theirs.strip(): ours.strip() for theirs, _, ours in pairs}


MAX_ISSUER_CHARS = 200
"""Characters; the column that keeps whose account somebody signed in by holds no more."""


def _check_provider(issuer: str, *, client_id: str) -> None:
    address = urlsplit(issuer)
    is_here = address.hostname in ("localhost", "127.0.0.1", "::1")
    if address.scheme != "https" and not (address.scheme == "http" and is_here):
        raise SettingsError("LOOM_OIDC_ISSUER is not an address that begins with https://.")
    if address.query or address.fragment or len(issuer) > MAX_ISSUER_CHARS:
        raise SettingsError("LOOM_OIDC_ISSUER is not the address of an issuer.")
    if not client_id:
        raise SettingsError("LOOM_OIDC_ISSUER is set and LOOM_OIDC_CLIENT_ID is not.")


def _prepare_data_dir(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingsError(
            f"the data folder {path} cannot be written ({error.strerror}). "
            "Set LOOM_DATA_DIR to a folder that can."
        ) from error
    return path


class Environment:
    """Typed values of all settings. Raises :class:`SettingsError`."""

    def __init__(self) -> None:
        env = Env()
        try:
            self._read(env)
        except EnvError as error:
            raise SettingsError(f"{str(error).rstrip('.')}. See docs/settings.md.") from error

    def _read(self, env: Env) -> None:
        positive = Range(min=1)
        self.debug: bool = env.bool("LOOM_DEBUG", False)
        self.data_dir = _prepare_data_dir(
            Path(env.str("LOOM_DATA_DIR", "") or BASE_DIR / "var").expanduser().resolve()
        )
        self.secret_key = _read_secret_key(env, self.data_dir)
        self.host: str = env.str("LOOM_HOST", "127.0.0.1")
        self.port: int = env.int("LOOM_PORT", 8000, validate=Range(min=0, max=65535))
        self.allowed_hosts: list[str] = env.list(
            "LOOM_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"]
        )
        self.trusted_origins: list[str] = env.list("LOOM_TRUSTED_ORIGINS", [])
        self.behind_tls_proxy: bool = env.bool("LOOM_BEHIND_TLS_PROXY", False)
        self.database_url: str = env.str("DATABASE_URL", "")
        self.synchronous: str = env.str(
            "LOOM_DB_SYNCHRONOUS", "FULL", validate=OneOf(("NORMAL", "FULL", "EXTRA"))
        )
        self.database_wait_seconds: float = env.float(
            "LOOM_DATABASE_WAIT_SECONDS", 30.0, validate=Range(min=0, max=3600)
        )
        self.redis_url: str = env.str("REDIS_URL", "")
        self.min_free_mib: int = env.int("LOOM_MIN_FREE_MIB", 256, validate=Range(min=0))
        roots: list[str] = env.list("LOOM_WORKSPACE_ROOTS", [])
        folders = _read_paths("LOOM_WORKSPACE_ROOTS", roots)
        self.workspace_roots = [folder.resolve() for folder in folders] or [
            self.data_dir / "workspaces"
        ]
        self.log_level: str = env.str(
            "LOOM_LOG_LEVEL", "INFO", validate=OneOf(("DEBUG", "INFO", "WARNING", "ERROR"))
        )
        self.log_format: str = env.str("LOOM_LOG_FORMAT", "text", validate=OneOf(("text", "json")))
        self.log_lines: int = env.int("LOOM_LOG_LINES", 30, validate=positive)
        self._read_model_settings(env, positive)
        self._read_transcript_settings(env, positive)
        self._read_runtime_settings(env, positive)
        self._read_snapshot_settings(env, positive)
        self._read_command_settings(env, positive)
        self._read_mcp_settings(env)
        self._read_prices(env)
        self._read_review_settings(env, positive)
        self._read_sharing_settings(env)
        self._read_sign_in_settings(env)
        self._read_retention_settings(env)
        self._read_api_settings(env, positive)
        self._read_webhook_settings(env)
        self._read_discord_settings(env)

    def _read_api_settings(self, env: Env, positive: Range) -> None:
        self.chat_server: str = env.str("LOOM_SERVER", "")
        self.chat_token: str = env.str("LOOM_TOKEN", "")
        self.chat_token_file: str = env.str("LOOM_TOKEN_FILE", "")
        rate = Regexp(r"[1-9]\d{0,8}/(second|minute|hour|day)\Z", error="Not like 600/minute.")
        self.api_rate: str = env.str("LOOM_API_RATE", "600/minute", validate=rate)
        self.max_api_bytes: int = env.int("LOOM_MAX_API_BYTES", 32_000_000, validate=positive)
        self.sse_heartbeat_seconds: float = env.float(
            "LOOM_SSE_HEARTBEAT_SECONDS", 15.0, validate=Range(min=0.05, max=300)
        )
        self.max_sockets: int = env.int("LOOM_MAX_SOCKETS", 100, validate=positive)
        self.max_streams: int = env.int("LOOM_MAX_STREAMS", 100, validate=positive)
        self.idempotency_hours: int = env.int("LOOM_IDEMPOTENCY_HOURS", 24, validate=Range(min=1))
        self.token_days: int = env.int("LOOM_TOKEN_DAYS", 90, validate=Range(min=0))

    def _read_model_settings(self, env: Env, positive: Range) -> None:
        self.api_key: str = env.str("ANTHROPIC_API_KEY", "")
        self.base_url: str = env.str("ANTHROPIC_BASE_URL", "")
        self.model: str = env.str("LOOM_MODEL", "claude-sonnet-5-5")
        self.models: list[str] = env.list(
            "LOOM_MODELS", ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"]
        )
        self.max_input_tokens: int = env.int(
            "LOOM_MAX_INPUT_TOKENS", 200_000, validate=Range(min=1000)
        )
        self.max_output_tokens: int = env.int("LOOM_MAX_OUTPUT_TOKENS", 16_000, validate=positive)
        self.provider_timeout: float = env.float(
            "LOOM_PROVIDER_TIMEOUT", 90.0, validate=Range(min=1)
        )
        self.provider_retries: int = env.int(
            "LOOM_PROVIDER_RETRIES", 4, validate=Range(min=0, max=20)
        )
        self._read_window_settings(env)
        self._read_prompt_settings(env, positive)
        self._read_compaction_settings(env, positive)
        self.demo_delay: float = env.float("LOOM_DEMO_DELAY", 0.02, validate=Range(min=0, max=10))

    def _read_window_settings(self, env: Env) -> None:
        percent = Range(min=1, max=100)
        self.window_strategy: str = env.str(
            "LOOM_WINDOW_STRATEGY",
            "archive",
            validate=OneOf(("archive", "sliding_window", "summarize")),
        )
        self.keep_recent: int = env.int("LOOM_KEEP_RECENT", 4, validate=Range(min=1, max=1000))
        self.high_water: int = env.int("LOOM_HIGH_WATER", 90, validate=percent)
        self.low_water: int = env.int("LOOM_LOW_WATER", 40, validate=percent)
        if self.low_water >= self.high_water:
            raise SettingsError("LOOM_LOW_WATER has to be below LOOM_HIGH_WATER.")
        self.message_share: int = env.int("LOOM_MESSAGE_SHARE", 50, validate=percent)
        self.result_share: int = env.int("LOOM_RESULT_SHARE", 15, validate=percent)
        self.prompt_cache: str = env.str(
            "LOOM_PROMPT_CACHE", "5m", validate=OneOf(("off", "5m", "1h"))
        )

    def _read_prompt_settings(self, env: Env, positive: Range) -> None:
        self.read_instruction_files: bool = env.bool("LOOM_READ_INSTRUCTION_FILES", True)
        self.max_instruction_bytes: int = env.int(
            "LOOM_MAX_INSTRUCTION_BYTES", 32_000, validate=positive
        )
        self.max_skills: int = env.int("LOOM_MAX_SKILLS", 100, validate=Range(min=0))
        self.skill_index_chars: int = env.int("LOOM_SKILL_INDEX_CHARS", 12_000, validate=positive)
        self.max_skill_bytes: int = env.int("LOOM_MAX_SKILL_BYTES", 64_000, validate=positive)

    def _read_compaction_settings(self, env: Env, positive: Range) -> None:
        self.compact_model: str = env.str("LOOM_COMPACT_MODEL", "")
        self.compact_at: int = env.int("LOOM_COMPACT_AT", 0, validate=Range(min=0))
        self.compact_at_end: bool = env.bool("LOOM_COMPACT_AT_END", False)
        self.compact_tokens: int = env.int("LOOM_COMPACT_TOKENS", 2000, validate=Range(min=100))
        self.compact_max_calls: int = env.int("LOOM_COMPACT_MAX_CALLS", 8, validate=positive)

    def _read_snapshot_settings(self, env: Env, positive: Range) -> None:
        self.snapshot_max_file_bytes: int = env.int(
            "LOOM_SNAPSHOT_MAX_FILE_BYTES", 20_000_000, validate=positive
        )
        self.snapshot_max_bytes: int = env.int(
            "LOOM_SNAPSHOT_MAX_BYTES", 1_000_000_000, validate=positive
        )
        self.max_read_bytes: int = env.int(
            "LOOM_MAX_READ_BYTES", 10_000_000, validate=Range(min=1000)
        )
        self.snapshot_max_files: int = env.int("LOOM_SNAPSHOT_MAX_FILES", 50_000, validate=positive)

    def _read_sharing_settings(self, env: Env) -> None:
        self.share_links: bool = env.bool("LOOM_SHARE_LINKS", False)
        self.share_days: int = env.int("LOOM_SHARE_DAYS", 30, validate=Range(min=1, max=3650))

    def _read_transcript_settings(self, env: Env, positive: Range) -> None:
        page = Range(min=1, max=500)
        self.page_size: int = env.int("LOOM_PAGE_SIZE", 250, validate=page)
        self.older_page_size: int = env.int("LOOM_OLDER_PAGE_SIZE", 200, validate=page)
        self.render_cap: int = env.int("LOOM_RENDER_CAP", 1200, validate=Range(min=100))
        self.use_journal: bool = env.bool("LOOM_USE_JOURNAL", True)
        self.legacy_fallback: bool = env.bool("LOOM_LEGACY_FALLBACK", True)
        self.session_list_size: int = env.int("LOOM_SESSION_LIST_SIZE", 50, validate=page)
        self.max_message_chars: int = env.int("LOOM_MAX_MESSAGE_CHARS", 400_000, validate=positive)
        self.max_queued: int = env.int("LOOM_MAX_QUEUED", 20, validate=positive)
        self.max_attachments: int = env.int(
            "LOOM_MAX_ATTACHMENTS", 10, validate=Range(min=0, max=100)
        )
        self.max_attachment_bytes: int = env.int(
            "LOOM_MAX_ATTACHMENT_BYTES", 10_000_000, validate=Range(min=1, max=20_000_000)
        )
        self.max_import_bytes: int = env.int(
            "LOOM_MAX_IMPORT_BYTES", 500_000_000, validate=Range(min=0)
        )

    def _read_runtime_settings(self, env: Env, positive: Range) -> None:
        self.delta_interval_ms: int = env.int(
            "LOOM_DELTA_INTERVAL_MS", 40, validate=Range(min=5, max=1000)
        )
        self.draft_interval_ms: int = env.int(
            "LOOM_DRAFT_INTERVAL_MS", 100, validate=Range(min=10, max=250)
        )
        self.heartbeat_seconds: float = env.float(
            "LOOM_HEARTBEAT_SECONDS", 2.0, validate=Range(min=0.05)
        )
        self.stale_seconds: float = env.float("LOOM_STALE_SECONDS", 15.0, validate=Range(min=0.2))
        self.watch_seconds: float = env.float(
            "LOOM_WATCH_SECONDS", 0.5, validate=Range(min=0.05, max=2)
        )
        self.max_model_calls: int = env.int("LOOM_MAX_MODEL_CALLS", 50, validate=positive)
        self.sign_in_attempts: int = env.int("LOOM_SIGN_IN_ATTEMPTS", 5, validate=positive)
        self.sign_in_address_attempts: int = env.int(
            "LOOM_SIGN_IN_ADDRESS_ATTEMPTS", 50, validate=positive
        )
        self.sign_in_lock_minutes: int = env.int("LOOM_SIGN_IN_LOCK_MINUTES", 15, validate=positive)
        self.invitation_days: int = env.int("LOOM_INVITATION_DAYS", 7, validate=Range(1, 365))
        self.invite_strangers: bool = env.bool("LOOM_INVITE_STRANGERS", True)
        self.max_frame_bytes: int = env.int("LOOM_MAX_FRAME_BYTES", 4_000_000, validate=positive)

    def _read_command_settings(self, env: Env, positive: Range) -> None:
        self.command_seconds: int = env.int("LOOM_COMMAND_SECONDS", 120, validate=positive)
        self.command_max_seconds: int = env.int("LOOM_COMMAND_MAX_SECONDS", 600, validate=positive)
        self.max_output_bytes: int = env.int(
            "LOOM_MAX_OUTPUT_BYTES", 2_000_000, validate=Range(min=1000)
        )
        self.command_max_processes: int = env.int(
            "LOOM_COMMAND_MAX_PROCESSES", 256, validate=positive
        )
        self.command_max_memory_mb: int = env.int(
            "LOOM_COMMAND_MAX_MEMORY_MB", 4096, validate=Range(min=64)
        )
        self.command_max_file_mb: int = env.int("LOOM_COMMAND_MAX_FILE_MB", 1024, validate=positive)
        self.command_max_written_mb: int = env.int(
            "LOOM_COMMAND_MAX_WRITTEN_MB", 4096, validate=positive
        )
        paths: list[str] = env.list("LOOM_SANDBOX_PATHS", [])
        self.sandbox_paths = _read_paths("LOOM_SANDBOX_PATHS", paths)
        self.unsandboxed_shell: bool = env.bool("LOOM_UNSANDBOXED_SHELL", False)
        self.shell_network: bool = env.bool("LOOM_SHELL_NETWORK", False)

    def _read_mcp_settings(self, env: Env) -> None:
        path = env.str("LOOM_MCP_CONFIG", "")
        self.mcp_config = Path(path).expanduser() if path else self.data_dir / "mcp.json"
        if path and not self.mcp_config.is_file():
            raise SettingsError(f"LOOM_MCP_CONFIG names {path}, which is no file.")
        try:
            self.mcp = read_config(self.mcp_config, environment=os.environ)
        except ConfigError as error:
            raise SettingsError(f"{error} See docs/mcp.md.") from error
        self.mcp_wait_seconds: float = env.float(
            "LOOM_MCP_WAIT_SECONDS", 2.0, validate=Range(min=0, max=60)
        )

    def _read_prices(self, env: Env) -> None:
        path = env.str("LOOM_PRICES", "")
        try:
            self.prices = read_prices(Path(path).expanduser() if path else None)
        except ValueError as error:
            raise SettingsError(f"LOOM_PRICES: {error} See docs/usage.md.") from error

    def _read_review_settings(self, env: Env, positive: Range) -> None:
        self.review_reason: str = env.str(
            "LOOM_REVIEW_REASON", "optional", validate=OneOf(("optional", "required", "off"))
        )
        self.review_reason_hours: int = env.int("LOOM_REVIEW_REASON_HOURS", 8, validate=positive)

    def _read_sign_in_settings(self, env: Env) -> None:
        self.two_factor: str = env.str(
            "LOOM_TWO_FACTOR", "off", validate=OneOf(("off", "optional", "required"))
        )
        self.oidc_issuer: str = env.str("LOOM_OIDC_ISSUER", "")
        self.oidc_client_id: str = env.str("LOOM_OIDC_CLIENT_ID", "")
        self.oidc_client_secret: str = env.str("LOOM_OIDC_CLIENT_SECRET", "")
        self.oidc_name: str = env.str("LOOM_OIDC_NAME", "")
        self.oidc_scopes: list[str] = env.list("LOOM_OIDC_SCOPES", ["openid", "profile", "email"])
        self.oidc_create_people: bool = env.bool("LOOM_OIDC_CREATE_PEOPLE", False)
        self.oidc_link_by_email: bool = env.bool("LOOM_OIDC_LINK_BY_EMAIL", False)
        self.oidc_groups_claim: str = env.str("LOOM_OIDC_GROUPS_CLAIM", "groups")
        self.oidc_groups = _read_pairs("LOOM_OIDC_GROUPS", env.list("LOOM_OIDC_GROUPS", []))
        if self.oidc_issuer:
            _check_provider(self.oidc_issuer, client_id=self.oidc_client_id)
            self.oidc_name = self.oidc_name or str(urlsplit(self.oidc_issuer).hostname)
        for setting in self._sign_in_extras():
            if find_spec("allauth") is None:
                raise SettingsError(
                    f"{setting} needs django-allauth, which is not installed. "
                    "Install it with: uv sync --extra sso. See docs/sign-in.md."
                )

    def _sign_in_extras(self) -> list[str]:
        """The settings for which django-allauth is loaded."""
        return ["LOOM_TWO_FACTOR"] * (self.two_factor != "off") + ["LOOM_OIDC_ISSUER"] * bool(
            self.oidc_issuer
        )

    @property
    def uses_allauth(self) -> bool:
        return bool(self._sign_in_extras())

    def _read_webhook_settings(self, env: Env) -> None:
        self.webhook_private_addresses: bool = env.bool("LOOM_WEBHOOK_PRIVATE_ADDRESSES", False)
        self.webhook_days: int = env.int("LOOM_WEBHOOK_DAYS", 30, validate=Range(min=1, max=3650))
        self.webhook_off_days: int = env.int(
            "LOOM_WEBHOOK_OFF_DAYS", 5, validate=Range(min=1, max=365)
        )

    def _read_retention_settings(self, env: Env) -> None:
        self.purge_grace_days: int = env.int(
            "LOOM_PURGE_GRACE_DAYS", 30, validate=Range(min=0, max=3650)
        )
        self.expire_minutes: int = env.int("LOOM_EXPIRE_MINUTES", 60, validate=Range(min=0))

    def _read_discord_settings(self, env: Env) -> None:
        self.discord_token: str = env.str("LOOM_DISCORD_TOKEN", "")
        path = env.str("LOOM_DISCORD_TOKEN_FILE", "")
        if path and not self.discord_token:
            self.discord_token = _read_secret_file("LOOM_DISCORD_TOKEN_FILE", path)
        self.discord_workspace: str = env.str("LOOM_DISCORD_WORKSPACE", "")
        self.discord_account: str = env.str("LOOM_DISCORD_ACCOUNT", "")
        self.discord_api: str = env.str("LOOM_DISCORD_API", "")
        self.discord_gateway: str = env.str("LOOM_DISCORD_GATEWAY", "")
        self.discord_max_messages: int = env.int(
            "LOOM_DISCORD_MAX_MESSAGES", 5, validate=Range(min=1, max=50)
        )
        self.discord_edit_seconds: float = env.float(
            "LOOM_DISCORD_EDIT_SECONDS", 1.5, validate=Range(min=0.02, max=60)
        )
        self.discord_answer: str = env.str(
            "LOOM_DISCORD_ANSWER", "mentions", validate=OneOf(("mentions", "all"))
        )
        self.discord_users: list[str] = env.list("LOOM_DISCORD_USERS", [])
        self.discord_guilds: list[str] = env.list("LOOM_DISCORD_GUILDS", [])
        self.discord_channels: list[str] = env.list("LOOM_DISCORD_CHANNELS", [])
