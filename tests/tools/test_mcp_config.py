"""The configuration file of tool servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from conversations.agent.mcp.config import ConfigError, McpConfig, parse_config, read_config

ENVIRONMENT = {"TOKEN": "s3cret"}


def parse(data: Any) -> McpConfig:
    return parse_config(data, environment=ENVIRONMENT)


def test_server_is_a_program_or_an_address(tmp_path: Path) -> None:
    config = parse(
        {
            "servers": {
                "files": {
                    "command": "npx",
                    "args": ["-y", "files", "--key=${TOKEN}"],
                    "env": {"KEY": "${TOKEN}!"},
                    "folder": str(tmp_path),
                },
                "tickets": {
                    "url": "https://example.org/mcp",
                    "headers": {"Authorization": "Bearer ${TOKEN}"},
                    "effect": "reads",
                    "timeout_seconds": 5,
                    "tools": ["find"],
                },
            }
        }
    )
    [files, tickets] = config.servers_of("garden")
    assert (files.command, files.folder) == (("npx", "-y", "files", "--key=s3cret"), tmp_path)
    assert files.environment == {"KEY": "s3cret!"}
    assert (files.effect, files.trust_hints, files.tools) == ("changes", False, None)
    assert (files.timeout_seconds, tickets.timeout_seconds) == (60, 5)
    assert tickets.headers == {"Authorization": "Bearer s3cret"}
    assert (tickets.transport, tickets.effect, tickets.tools) == ("HTTP", "reads", {"find"})
    assert "s3cret" not in repr(tickets)


def test_workspace_can_add_replace_and_turn_off_servers() -> None:
    config = parse(
        {
            "servers": {"a": {"command": "one"}, "b": {"command": "two"}},
            "workspaces": {
                "garden": {"servers": {"b": {"command": "three"}, "c": {"url": "http://c/"}}},
                "shed": {"off": ["a"]},
            },
        }
    )
    assert [server.name for server in config.servers_of("garden")] == ["a", "b", "c"]
    assert config.servers_of("garden")[1].command == ("three",)
    assert [server.name for server in config.servers_of("shed")] == ["b"]
    assert [server.name for server in config.servers_of("shed", off=True)] == ["a"]
    assert config.is_own("garden", "b")
    assert not config.is_own("shed", "b")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "the file must be an object."),
        ({"server": {}}, "the file: unknown key 'server'. Known keys: servers, workspaces."),
        ({"servers": {"a b": {"command": "x"}}}, "'a b' is not a valid server name"),
        ({"servers": {"a__b": {"command": "x"}}}, "'a__b' is not a valid server name"),
        ({"servers": {"a": {}}}, "servers.a needs either a command or a url."),
        (
            {"servers": {"a": {"command": "x", "url": "http://x"}}},
            "needs either a command or a url",
        ),
        ({"servers": {"a": {"command": "x", "headers": {}}}}, "unknown key 'headers'"),
        ({"servers": {"a": {"command": ""}}}, "servers.a.command must be a non-empty text"),
        ({"servers": {"a": {"command": "x", "args": "y"}}}, "args must be a list of texts"),
        ({"servers": {"a": {"command": "x", "env": {"K": "${NO}"}}}}, "environment variable NO"),
        (
            {"servers": {"a": {"command": "x", "folder": "nowhere"}}},
            "nowhere is not an absolute path",
        ),
        (
            {"servers": {"a": {"command": "x", "network": True}}},
            "network applies only to a sandbox",
        ),
        ({"servers": {"a": {"url": "ftp://x"}}}, "'ftp://x' is not an http or https URL"),
        ({"servers": {"a": {"url": "http://x", "headers": {"A": "b\nc"}}}}, "cannot be sent"),
        ({"servers": {"a": {"url": "http://x", "effect": "none"}}}, "one of reads, changes"),
        ({"servers": {"a": {"url": "http://x", "trust_hints": 1}}}, "must be true or false"),
        ({"servers": {"a": {"url": "http://x", "timeout_seconds": 0}}}, "a number from 1 to 3600"),
        ({"servers": {"a": {"url": "http://x", "sampling": {"max_tokens": 0}}}}, "1 to 100000"),
        ({"servers": {"a": {"url": "http://x", "sampling": {"model": "m"}}}}, "unknown key"),
        ({"workspaces": {"garden": {"of": []}}}, "workspaces.garden: unknown key 'of'"),
    ],
)
def test_invalid_configuration_is_refused_with_an_explanation(data: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert sentence in str(caught.value)


def test_missing_file_gives_no_servers(tmp_path: Path) -> None:
    assert read_config(tmp_path / "mcp.json", environment={}).is_empty


def test_error_about_invalid_json_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"mcp\.json is not valid JSON"):
            read_config(path, environment={})


def test_warning_is_given_if_others_can_read_secrets(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"servers": {"a": {"command": "x", "env": {"K": "v"}}}}))
    path.chmod(0o644)
    assert "chmod 600" in read_config(path, environment={}).warning
    path.chmod(0o600)
    assert read_config(path, environment={}).warning == ""
