"""Settings: their documentation, their validation and the files that the first start creates."""

import ast
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from channels.layers import get_channel_layer
from django.conf import global_settings
from django.core.management import CommandError, call_command
from django.test import override_settings

from conversations.api.middleware import _limiter
from loomweb.env import BASE_DIR, Environment, SettingsError
from loomweb.redis_cache import FallbackRedisCache
from tests.starting import Starts

DOCS = (BASE_DIR / "docs/settings.md").read_text()


def read_declared() -> dict[str, Any]:
    """Return the default of every setting that env.py reads, by name."""
    tree = ast.parse((BASE_DIR / "loomweb/env.py").read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "env"
        and isinstance(node.args[0], ast.Constant)
    ]
    return {str(call.args[0].value): ast.literal_eval(call.args[1]) for call in calls}  # type: ignore[attr-defined]


def read_described() -> dict[str, tuple[str, str]]:
    """Return the type and default of every setting in the document's tables, by name."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|([^|]+)\|([^|]*)\|[^|]+\|$", DOCS, re.M)
    return {name: (kind, default.strip()) for name, kind, default in rows}


DECLARED, DESCRIBED = read_declared(), read_described()


def test_the_documented_settings_are_exactly_the_existing_ones() -> None:
    assert set(DECLARED) == set(DESCRIBED)
    assert len(DECLARED) > 30
    mentioned = set(re.findall(r"`((?:LOOM|ANTHROPIC|OPENAI)_[A-Z_]+)`", DOCS))
    assert mentioned <= set(DECLARED)


def test_documented_defaults_are_the_real_ones() -> None:
    for name, default in DECLARED.items():
        if name == "LOOM_DATA_DIR":
            assert DESCRIBED[name][1] == "`var/` beside the program"
            continue
        if isinstance(default, list):
            default = ",".join(default)
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert DESCRIBED[name][1].strip("`") == text, name


type Manage = Callable[..., subprocess.CompletedProcess[str]]


def with_nothing_set_but(data_dir: Path | str, env: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    return kept | {"LOOM_DATA_DIR": str(data_dir)} | env


@pytest.fixture
def manage(starts: Starts) -> Manage:
    """A function that runs manage.py in a fork, with only the given settings."""

    def manage(
        *arguments: str, data_dir: Path | str, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return starts.run("manage.py", *arguments, env=with_nothing_set_but(data_dir, env))

    return manage


def settings_of(data_dir: Path | str, **env: str) -> Any:
    """Load the settings module with only the given settings in the environment."""
    spec = find_spec("loomweb.settings")
    assert spec is not None
    assert spec.loader is not None
    made: ModuleType = module_from_spec(spec)
    with patch.dict(os.environ, with_nothing_set_but(data_dir, env), clear=True):
        spec.loader.exec_module(made)
    return made


def refusal_of(data_dir: Path | str, **env: str) -> str:
    """Return the error that stops the start with only the given settings."""
    with pytest.raises(SettingsError) as refused:
        settings_of(data_dir, **env)
    sentence = str(refused.value)
    assert sentence.startswith("Loom Web cannot start: ")
    assert "\n" not in sentence
    return sentence


BAD = [
    ("LOOM_PORT", "abc"),
    ("LOOM_PORT", "70000"),
    ("LOOM_PORT", ""),
    ("LOOM_DEBUG", "maybe"),
    ("LOOM_DEMO_DELAY", "nan"),
    ("LOOM_DB_SYNCHRONOUS", "OFF"),
    ("LOOM_ASGI_SERVER", "hypercorn"),
    ("LOOM_LOG_FORMAT", "xml"),
    ("LOOM_PAGE_SIZE", "501"),
    ("LOOM_SIGN_IN_ATTEMPTS", "0"),
    ("LOOM_SIGN_IN_ADDRESS_ATTEMPTS", "0"),
    ("LOOM_LOG_LINES", "0"),
    ("LOOM_MIN_FREE_MIB", "-1"),
    ("LOOM_COMMAND_MAX_WRITTEN_MB", "0"),
    ("LOOM_DATABASE_WAIT_SECONDS", "-1"),
    ("LOOM_DATABASE_WAIT_SECONDS", "soon"),
    ("LOOM_ALLOWED_HOSTS", ""),
    ("LOOM_TRUSTED_ORIGINS", "chat.example.org"),
    ("LOOM_TRUSTED_ORIGINS", "https://chat.example.org/"),
    ("LOOM_TRUSTED_ORIGINS", "https://*.example.org"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "redis://:secret@localhost:99x/0"),
    ("REDIS_URL", "redis://:secret/word@localhost:6379/0"),
    ("REDIS_URL", "redis://:12/word@localhost:6379/0"),
    ("REDIS_URL", "redis://:12#secret@localhost:6379/0"),
    ("REDIS_URL", "redis://:a@b/secret@localhost:6379/0"),
    ("REDIS_URL", "redis://localhost:6379/first"),
    ("REDIS_URL", "redis://[::1/0"),
    ("REDIS_URL", "redis://localhost:70000/0"),
    ("REDIS_URL", "unix://"),
    ("ANTHROPIC_BASE_URL", "junk"),
    ("ANTHROPIC_BASE_URL", "https://"),
    ("OPENAI_BASE_URL", "junk"),
    ("DATABASE_URL", "nonsense"),
    ("DATABASE_URL", "sqlite://:memory:"),
    ("DATABASE_URL", "sqlite:///file::memory:?cache=shared"),
    ("LOOM_EMAIL_FROM", "Loom Web loom@example.org"),
    ("LOOM_EMAIL_FROM", "Loom, Web <loom@example.org>"),
    ("LOOM_TWO_FACTOR", "maybe"),
    ("LOOM_OIDC_ISSUER", "login.example.org"),
    ("LOOM_OIDC_ISSUER", "http://login.example.org"),
    ("LOOM_OIDC_ISSUER", "https://login.example.org?a=b"),
    ("LOOM_OIDC_ISSUER", "https://login.example.org/" + "x" * 200),
    ("LOOM_OIDC_ISSUER", "https://login.example.org"),  # without LOOM_OIDC_CLIENT_ID
    ("LOOM_OIDC_GROUPS", "reviewers"),
]


def test_a_bad_value_is_refused_with_one_sentence(tmp_path: Path) -> None:
    for name, value in BAD:
        said = refusal_of(tmp_path, **{name: value})
        assert name in said, (name, value)
        assert "secret" not in said, (name, value)


def test_every_number_has_an_upper_bound(tmp_path: Path) -> None:
    """People type many nines to mean "for ever", but no date or system limit is so large."""
    numbers = [
        name
        for name, (kind, _) in DESCRIBED.items()
        if kind.split()[0].strip(",") in ("integer", "number")
    ]
    assert len(numbers) > 60
    for name in numbers:
        env = with_nothing_set_but(tmp_path, {name: "9" * 13})
        with patch.dict(os.environ, env, clear=True), pytest.raises(SettingsError, match=name):
            Environment()


def test_the_stale_time_must_be_at_least_three_heartbeats(tmp_path: Path) -> None:
    for values in (
        {"LOOM_HEARTBEAT_SECONDS": "5.1"},
        {"LOOM_STALE_SECONDS": "5"},
        {"LOOM_HEARTBEAT_SECONDS": "0.1", "LOOM_STALE_SECONDS": "0.2"},
    ):
        sentence = refusal_of(tmp_path, **values)
        assert "LOOM_STALE_SECONDS must be at least 3 times LOOM_HEARTBEAT_SECONDS." in sentence


def test_a_bad_value_stops_the_start_with_one_sentence(tmp_path: Path, manage: Manage) -> None:
    for name, value in (
        ("DATABASE_URL", "mysql://a:secret@b/c"),
        ("REDIS_URL", "redis://:secret@localhost:99x/0"),
    ):
        done = manage("check", data_dir=tmp_path, **{name: value})
        assert done.returncode != 0
        [sentence] = done.stderr.strip().splitlines()
        assert sentence.startswith("Loom Web cannot start: ")
        assert name in sentence
        assert "secret" not in done.stderr + done.stdout


def test_a_bad_file_of_tool_servers_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"servers": {"files": {"command": "x", "env": {"A": "${NO_SUCH}"}}}}')
    assert refusal_of(tmp_path) == (
        f"Loom Web cannot start: {path}: servers.files.env.A: "
        "the environment variable NO_SUCH is not set."
        " See docs/mcp.md."
    )
    missing = refusal_of(tmp_path, LOOM_MCP_CONFIG="/no/such/file")
    assert "LOOM_MCP_CONFIG names /no/such/file, which is not a file." in missing


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[models", "is not a valid price list: "),
        ("", "is not a valid price list: 'models' is missing."),
        ("[models]\nm = [{ input = 1 }]", "is not a valid price list: 'output' is missing."),
        (
            '[models]\nm = [{ from = "x", input = 1, output = 1 }]',
            "is not a valid price list: “from” must be a date such as 2026-11-01.",
        ),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_bad_prices_stop_the_start_with_one_sentence(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    sentence = refusal_of(tmp_path, LOOM_PRICES=str(path))
    assert f"Loom Web cannot start: LOOM_PRICES: {path} {reason}" in sentence


def test_the_error_names_an_unwritable_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/loom")):
        sentence = refusal_of(folder)
        assert f"the data folder {folder} is not writable" in sentence
        assert "LOOM_DATA_DIR" in sentence


def test_only_its_owner_can_access_the_data_folder(tmp_path: Path) -> None:
    settings_of(tmp_path / "data")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_the_secret_key_is_created_once_and_only_for_its_owner(tmp_path: Path) -> None:
    key = settings_of(tmp_path).SECRET_KEY
    assert len(key) >= 50
    assert key == settings_of(tmp_path).SECRET_KEY
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert key != settings_of(tmp_path / "other").SECRET_KEY


def test_a_file_without_a_key_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "secret_key"
    for content in (b"", b" \n", b"\xff\xfe\xff"):
        path.write_bytes(content)
        assert f"{path} does not contain a key." in refusal_of(tmp_path)
    path.unlink()
    path.mkdir()
    assert f"{path} cannot be read" in refusal_of(tmp_path)


def test_a_given_key_is_used_and_not_written_unless_it_is_blank(tmp_path: Path) -> None:
    given = "given" * 10
    assert given == settings_of(tmp_path, LOOM_SECRET_KEY=given).SECRET_KEY
    assert not (tmp_path / "secret_key").exists()
    made = settings_of(tmp_path, LOOM_SECRET_KEY=" ").SECRET_KEY
    assert made == settings_of(tmp_path).SECRET_KEY


def test_no_socket_needs_redis(tmp_path: Path) -> None:
    made = settings_of(tmp_path, REDIS_URL="redis://127.0.0.1:1/0")
    with override_settings(CHANNEL_LAYERS=made.CHANNEL_LAYERS):
        assert get_channel_layer() is None
        assert get_channel_layer("relay") is not None


COOKIES = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_PROXY_SSL_HEADER")


def test_cookies_are_secure_only_behind_a_tls_proxy(tmp_path: Path) -> None:
    for behind, expected in {
        "true": [True, True, ("HTTP_X_FORWARDED_PROTO", "https")],
        "false": [False, False, None],
    }.items():
        made = settings_of(tmp_path, LOOM_BEHIND_TLS_PROXY=behind)
        assert [getattr(made, name, getattr(global_settings, name)) for name in COOKIES] == expected


def test_valid_redis_urls_are_accepted(tmp_path: Path) -> None:
    for url in (
        "redis://localhost",
        "redis://ann:pa%2Fss@[::1]:6380/2?protocol=3",
        "rediss://:secret@redis.example.org:6379/",
        "unix:///run/redis.sock?db=1",
    ):
        with patch.dict(os.environ, with_nothing_set_but(tmp_path, {"REDIS_URL": url}), clear=True):
            assert Environment().redis_url == url
        _limiter(url)  # the rate limiter must accept the same URLs


def test_a_password_of_redis_may_have_any_character() -> None:
    cache = FallbackRedisCache("redis://:pa,s;s@127.0.0.1:1", {})
    assert cache.add("code", 1)  # stored in this process, because no server listens there


def test_lists_are_stripped_and_hosts_have_no_scheme_or_port(tmp_path: Path) -> None:
    made = settings_of(tmp_path, LOOM_ALLOWED_HOSTS="chat.example.org, 127.0.0.1,, [::1]")
    assert made.ALLOWED_HOSTS == ["chat.example.org", "127.0.0.1", "[::1]"]
    for wrong in ("https://chat.example.org", "127.0.0.1:8975"):
        assert f"LOOM_ALLOWED_HOSTS contains {wrong}" in refusal_of(
            tmp_path, LOOM_ALLOWED_HOSTS=wrong
        )


def test_this_machine_can_reach_the_default_site_address(tmp_path: Path) -> None:
    for host, address in {
        "": "http://127.0.0.1:8000",
        "0.0.0.0": "http://127.0.0.1:8000",
        "::": "http://[::1]:8000",
        "chat.example.org": "http://chat.example.org:8000",
    }.items():
        assert settings_of(tmp_path, LOOM_HOST=host).LOOM.site == address
    assert settings_of(tmp_path, LOOM_HOST="").LOOM.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("names", "proxied", "direct"),
    [
        ("chat.example.org", "https://chat.example.org", "http://chat.example.org:8000"),
        (
            "127.0.0.1,.example.org,*,chat.example.org,other.example.org",
            "https://chat.example.org",
            "http://127.0.0.1:8000",
        ),
        (".example.org", "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost,127.0.0.1,[::1]", "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost,chat.lan", "https://chat.lan", "http://localhost:8000"),
    ],
)
def test_links_have_a_name_that_the_server_accepts(
    tmp_path: Path, names: str, proxied: str, direct: str
) -> None:
    made = settings_of(tmp_path, LOOM_ALLOWED_HOSTS=names, LOOM_BEHIND_TLS_PROXY="true")
    assert made.LOOM.site == proxied
    made = settings_of(tmp_path, LOOM_ALLOWED_HOSTS=names)
    assert made.LOOM.site == direct


def test_behind_a_proxy_links_have_the_port_of_a_trusted_origin(tmp_path: Path) -> None:
    made = settings_of(
        tmp_path,
        LOOM_ALLOWED_HOSTS="chat.example.org",
        LOOM_BEHIND_TLS_PROXY="true",
        LOOM_TRUSTED_ORIGINS="https://other.example.org:1,https://chat.example.org:8443",
    )
    assert made.LOOM.site == "https://chat.example.org:8443"


def test_an_unusable_port_or_database_is_reported_in_one_sentence(
    tmp_path: Path, starts: Starts
) -> None:
    """test_commands_in_an_outage.py covers an unreachable database."""
    (tmp_path / "loom.sqlite3").write_text("This is a letter, and no database. " * 40)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"LOOM_HOST": "192.0.2.1", "LOOM_PORT": str(port)}
        env = with_nothing_set_but(tmp_path, env)
        no_database = ("The database cannot be used", "file is not a database")
        with starts.loaded(env) as loaded:
            for command, said in {
                "serve --host 127.0.0.1": (f"Port {port} on 127.0.0.1 is in use.", "LOOM_PORT"),
                "serve --port 0": ("Cannot listen on 192.0.2.1",),
                "serve --host 127.0.0.1 --port 0": no_database,
                "sign_in_link": no_database,
            }.items():
                done = loaded.run("manage.py", *command.split(), env=env)
                assert done.returncode != 0
                [sentence] = done.stderr.strip().splitlines()
                assert all(words in sentence for words in said), sentence


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_an_invalid_port_is_refused_in_one_sentence(port: str) -> None:
    with pytest.raises(CommandError, match=r"^--port must be between 0 and 65535\.$") as refused:
        call_command("serve", f"--port={port}")
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({"LOOM_TWO_FACTOR": "optional"}, "sso"),
        ({"LOOM_OIDC_ISSUER": "https://sso.example.org", "LOOM_OIDC_CLIENT_ID": "loom"}, "sso"),
        ({"LOOM_SEMANTIC": "on"}, "semantic"),
        ({"LOOM_ASGI_SERVER": "uvicorn"}, "uvicorn"),
    ],
)
def test_the_error_names_an_extra_that_is_not_installed(
    settings: dict[str, str], extra: str, tmp_path: Path
) -> None:
    with patch.dict(sys.modules, allauth=None, numpy=None, uvicorn=None):
        sentence = refusal_of(tmp_path, **settings)
    assert sentence.startswith(f"Loom Web cannot start: {next(iter(settings))} ")
    assert f"not installed. Install it with: make extra NAME={extra}." in sentence


GOOD = {
    "DJANGO_SETTINGS_MODULE": "loomweb.settings",
    "LOOM_TRUSTED_ORIGINS": "https://chat.example.org,http://localhost:3000",
    "LOOM_ALLOWED_HOSTS": ".example.org",
    "LOOM_DEBUG": "true",
    "LOOM_EMAIL_FROM": '"Loom, Web" <loom@example.org>',
    "REDIS_URL": "rediss://localhost:6379/0",
}

START = """
import sys, warnings
sys.modules.update(allauth=None, numpy=None, uvicorn=None)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "check"])
warnings.simplefilter("ignore")
import loomweb.asgi
"""


def test_valid_settings_load_without_the_extras(tmp_path: Path, starts: Starts) -> None:
    env = with_nothing_set_but(tmp_path / "new" / "folder", GOOD)
    done = starts.run("-c", START, env=env)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("given", "made"),
    [({"PYTEST_XDIST_WORKER": "gw1"}, 2), ({"LOOM_DATA_DIR": "own"}, 0)],
)
def test_the_data_folders_of_the_tests_are_removed_at_exit(
    given: dict[str, str], made: int, tmp_path: Path, starts: Starts
) -> None:
    places = tmp_path / "temporary"
    places.mkdir()
    code = f"import os, tempfile; tempfile.tempdir = {str(places)!r}; import tests.settings; "
    env = {"PATH": "", **given}
    if "LOOM_DATA_DIR" in given:
        env["LOOM_DATA_DIR"] = str(tmp_path / given["LOOM_DATA_DIR"])
    done = starts.run("-c", f"{code}print(len(os.listdir(tempfile.tempdir)))", env=env)
    assert (done.stdout, done.stderr) == (f"{made}\n", "")
    assert not list(places.iterdir())
