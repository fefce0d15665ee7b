"""The documents describe exactly the frames, commands and metrics that the code has."""

import ast
import re
from functools import cache
from pathlib import Path

from django.core.management import get_commands

from conversations.accounts.tokens import SCOPES
from conversations.web import consumers
from loomweb.env import BASE_DIR

PROTOCOL = (BASE_DIR / "docs/protocol.md").read_text()

BETWEEN_PROCESSES = {"loom.frame"}
"""Messages of the relay, which pages do not receive."""


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def first_column(text: str) -> set[str]:
    """Return the first cells of all rows of the tables, without the header."""
    return set(re.findall(r"^\| `(\w+)` \|", text, re.M)) - {"type"}


@cache
def sent_types() -> set[str]:
    """Return every literal ``type`` of a frame that is built for a page."""
    sources = {*(BASE_DIR / "conversations/runtime").glob("*.py"), Path(consumers.__file__)}
    sources.remove(BASE_DIR / "conversations/runtime/probing.py")  # its blocks go to a model
    found = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Dict):
                found |= {
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value == "type"
                    and isinstance(value, ast.Constant)
                }
    return found - BETWEEN_PROCESSES


def test_the_protocol_names_every_frame_from_the_page() -> None:
    assert first_column(section(PROTOCOL, "From the client")) == set(consumers._REQUESTS)


def test_the_protocol_names_every_frame_to_the_page() -> None:
    assert first_column(section(PROTOCOL, "From the server")) == sent_types()


def test_the_page_knows_every_frame() -> None:
    script = (BASE_DIR / "static/js/chat.js").read_text()
    table = script.split("const FRAMES = {")[1].split("\n};")[0]
    assert sent_types() - {"pong"} <= set(re.findall(r"^  (\w+):", table, re.M))


def test_the_protocol_names_every_close_code() -> None:
    named = set(re.findall(r"^\| (4\d{3}) \|", PROTOCOL, re.M))
    codes = {
        consumers.BAD_FRAME,
        consumers.SIGNED_OUT,
        consumers.WRONG_ORIGIN,
        consumers.UNKNOWN,
        consumers.TOO_SLOW,
        consumers.TOO_MANY,
    }
    assert {int(code) for code in named} == codes


COMMANDS = [name for name, app in get_commands().items() if app.startswith("conversations")]


def test_every_command_is_described() -> None:
    described = (BASE_DIR / "docs/commands.md").read_text()
    for command in COMMANDS:
        heading = re.search(rf"^##+ .*\b{command}\b", described, re.M)
        assert heading or f"`{command}" in described, command


def test_every_scope_of_a_token_is_named() -> None:
    told = section((BASE_DIR / "docs/commands.md").read_text(), "create_token")
    assert set(SCOPES) <= set(re.findall(r"`(\w+)`", told))


METRICS = {
    name
    for path in (BASE_DIR / "conversations").rglob("*.py")
    for name in re.findall(r'"(loom_\w+)"', path.read_text())
    if path.stem in ("current", "apps")
}
DESCRIBED_METRICS = first_column(section((BASE_DIR / "docs/operating.md").read_text(), "Metrics"))


def test_every_metric_is_described() -> None:
    assert METRICS <= DESCRIBED_METRICS


def test_paths_in_the_architecture_document_exist() -> None:
    text = (BASE_DIR / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section(text, "Where would I add …"), re.M)
    assert len(rows) > 10
    for what, where in rows[2:]:
        paths = [name for name in re.findall(r"`([\w/.]+)`", where) if "/" in name]
        assert paths, what
        for name in paths:
            feature = re.match(r"conversations/features/\w+", name)
            if feature is None or (BASE_DIR / feature[0]).exists():
                assert (BASE_DIR / name).exists(), (what, name)


def test_only_the_makefile_calls_uv() -> None:
    """``uv`` is not on everybody's PATH, and by default it installs the development packages."""
    told = [BASE_DIR / "README.md"]
    for folder in ("docs", "conversations", "loomweb"):
        told += [path for path in (BASE_DIR / folder).rglob("*") if path.suffix in (".md", ".py")]
    assert len(told) > 100
    for path in told:
        assert not re.search(r"\buv (run|sync)\b", path.read_text()), path


def test_the_backup_section_names_everything_in_the_data_folder() -> None:
    told = section((BASE_DIR / "README.md").read_text(), "Back up")
    sources = [*(BASE_DIR / "conversations").rglob("*.py"), *(BASE_DIR / "loomweb").rglob("*.py")]
    places = re.compile(r'data_dir\)? / "([\w.]+)"')
    named = {name for path in sources for name in places.findall(path.read_text())}
    assert {"secret_key", "blobs", "workspaces", "providers.toml"} <= named
    assert {name for name in named if name not in told} == {"test.sqlite3"}


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_links_between_documents_are_not_broken() -> None:
    documents = [BASE_DIR / "README.md", *(BASE_DIR / "docs").rglob("*.md")]
    assert len(documents) > 10
    for document in documents:
        for target in LINK.findall(document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), (document.name, target)
