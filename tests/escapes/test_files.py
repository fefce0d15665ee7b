"""Attempts to leave the workspace's folder, or to block the server, with the file tools.

Each attempt is made with every tool that takes a path. Nothing outside may be read or changed, and
each call must return a text.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.conf import settings

from conversations.agent.files.paths import shown
from conversations.agent.tools.tool import ToolResult
from conversations.domain.tool_calls import CallPlan
from tests.changes.conftest import picture
from tests.tools.using import Use, root, use

__all__ = ["root", "use"]

pytestmark = pytest.mark.django_db

SECRET = "SECRET-WORD"


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, root: Path) -> Iterator[Path]:
    """A folder beside the workspace. A second one has a name that begins like the workspace's.

    After the test both folders are unchanged, and the workspace contains no temporary files.
    """
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    sibling = Path(f"{root}-sibling")
    sibling.mkdir()
    (sibling / "secret.txt").write_text(f"{SECRET}\n")
    (root / "folder").mkdir()
    (root / "plain.txt").write_text("plain words\n")
    before = picture(folder), picture(sibling)
    times = (folder / "secret.txt").stat().st_mtime_ns
    yield folder
    assert (picture(folder), picture(sibling)) == before
    assert (folder / "secret.txt").stat().st_mtime_ns == times
    assert not [name for name in os.listdir(root) if name.startswith(".loom-")]


SYSTEM = ("/etc", "//etc", "/proc", "/dev", "../../../", "~/")


def try_everything(use: Use, path: str, *, is_system: bool = False) -> dict[str, ToolResult]:
    """Call every tool with the path, the tools that change something last.

    If the path would lead to the system's own files, changes are only planned.
    """

    def change(tool: str, **arguments: Any) -> ToolResult:
        result = (use.plan if is_system else use)(tool, **arguments)
        return result if isinstance(result, ToolResult) else ToolResult(ok=True, output="planned")

    results = {
        "list_files": use("list_files", path=path, depth=2),
        "glob_files": use("glob_files", path=path, pattern="**"),
        "search_files": use("search_files", path=path, pattern=SECRET),
        "read_file": use("read_file", path=path),
        "edit_file": change("edit_file", path=path, old_text=SECRET, new_text="changed"),
        "write_file": change("write_file", path=path, content="changed"),
        "move here": change("move_file", source="plain.txt", destination=path),
        "move away": change("move_file", source=path, destination="stolen.txt"),
        "delete_file": change("delete_file", path=path),
    }
    for tool, result in results.items():
        assert SECRET not in result.output.replace(path, ""), tool
        assert SECRET not in result.diff, tool
        assert result.output, tool
    return results


def link(name: str, target: str) -> Callable[[Path, Path], None]:
    return lambda root, outside: (root / name).symlink_to(target.format(outside=outside))


def chain(root: Path, outside: Path) -> None:
    (root / "one").symlink_to("folder/two")
    (root / "folder/two").symlink_to("../three")
    (root / "three").symlink_to(outside / "secret.txt")


def loop(root: Path, outside: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")


def pipe(root: Path, outside: Path) -> None:
    os.mkfifo(root / "pipe")


def listening(root: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(root, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)


def nothing(root: Path, outside: Path) -> None:
    pass


# A path, the function that prepares it, and the tools that may succeed because they do no harm.
LINK_ITSELF = {"delete_file", "move away"}
NEW_NAME = {"write_file", "move away", "delete_file"}
ATTEMPTS = {
    "upwards": ("../outside/secret.txt", nothing, set[str]()),
    "upwards from a folder": ("folder/../../outside/secret.txt", nothing, set[str]()),
    "upwards through what is not there": ("none/../../outside/secret.txt", nothing, set[str]()),
    "upwards through a file": ("plain.txt/../../outside/secret.txt", nothing, set[str]()),
    "upwards often": ("../" * 60 + "etc/passwd", nothing, set[str]()),
    "the folder above": ("..", nothing, set[str]()),
    "absolute": ("{outside}/secret.txt", nothing, set[str]()),
    "absolute with a shared beginning": ("{root}-sibling/secret.txt", nothing, set[str]()),
    "two slashes": ("//etc/passwd", nothing, set[str]()),
    "passwords": ("/etc/passwd", nothing, set[str]()),
    "environment": ("/proc/self/environ", nothing, set[str]()),
    "the process's root": ("/proc/self/root/etc/passwd", nothing, set[str]()),
    "the process's folder": ("/proc/self/cwd/manage.py", nothing, set[str]()),
    "endless device": ("/dev/zero", nothing, set[str]()),
    "standard input": ("/dev/stdin", nothing, set[str]()),
    "home": ("~/secret.txt", nothing, set[str]()),
    "somebody's home": ("~root/.ssh/id_rsa", nothing, NEW_NAME),
    "nul": ("plain.txt\0/../../outside", nothing, set[str]()),
    "not a character": ("\ud800/../..", nothing, set[str]()),
    "long name": ("x" * 256, nothing, set[str]()),
    "long path": ("x/" * 4000, nothing, set[str]()),
    "deep path": ("x/" * 2000 + "y", nothing, set[str]()),
    "deep path that is allowed": ("x/" * 150 + "y", nothing, NEW_NAME),
    "address": ("file:///etc/passwd", nothing, NEW_NAME),
    "encoded dots": ("%2e%2e/outside/secret.txt", nothing, NEW_NAME),
    "wide dots": ("．．/outside/secret.txt", nothing, NEW_NAME),
    "backslashes": ("..\\outside\\secret.txt", nothing, NEW_NAME),
    "link to a file": ("gate", link("gate", "{outside}/secret.txt"), LINK_ITSELF),
    "link to a folder": ("gate/secret.txt", link("gate", "{outside}"), set[str]()),
    "link to a folder itself": ("gate", link("gate", "{outside}"), LINK_ITSELF),
    "through a link and up": ("gate/../outside/secret.txt", link("gate", "{outside}"), set[str]()),
    "relative link": ("gate", link("gate", "../outside/secret.txt"), LINK_ITSELF),
    "chain of links": ("one", chain, LINK_ITSELF),
    "loop of links": ("one", loop, LINK_ITSELF),
    "below a loop": ("one/x", loop, set[str]()),
    "link to what is not there": ("gate", link("gate", "{outside}/new.txt"), LINK_ITSELF),
    "link to the environment": ("gate", link("gate", "/proc/self/environ"), LINK_ITSELF),
    "link to a descriptor": ("gate", link("gate", "/proc/self/fd/0"), LINK_ITSELF),
    "link to a device": ("gate", link("gate", "/dev/zero"), LINK_ITSELF),
    "link to the root": ("gate/etc/passwd", link("gate", "/"), set[str]()),
    "pipe": ("pipe", pipe, {"move away"}),
    "socket": ("socket", listening, {"move away"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_path_leads_outside(use: Use, root: Path, outside: Path, name: str) -> None:
    text, prepare, harmless = ATTEMPTS[name]
    prepare(root, outside)
    path = text.replace("{outside}", str(outside)).replace("{root}", str(root))
    leads_to = [path, *(os.readlink(entry) for entry in root.iterdir() if entry.is_symlink())]
    is_system = any(place == "/" or place.startswith(SYSTEM) for place in leads_to)
    results = try_everything(use, path, is_system=is_system)
    went = {tool for tool, result in results.items() if result.ok}
    assert went <= harmless, {tool: results[tool].output for tool in went - harmless}


GIT_PATHS = (
    ".git/hooks/pre-commit",
    ".git/config",
    ".git/info/attributes",
    ".git",
    ".GIT/hooks/pre-commit",
    ".git./hooks/x",
    ".g\u200cit/config",
    "git~1/config",
    "folder/.git/hooks/post-checkout",
    "folder/../.git/config",
    "gate/pre-commit",
    "gate",
)


@pytest.mark.parametrize("path", GIT_PATHS)
def test_git_hooks_and_configuration_cannot_be_changed(use: Use, root: Path, path: str) -> None:
    """A hook or an alias would run outside of the sandbox."""
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/config").write_text("[core]\n")
    if path == "gate":
        (root / "gate").symlink_to(".git/config")
    else:
        (root / "gate").symlink_to(".git/hooks")
    before = picture(root / ".git")
    changes = (
        use("write_file", path=path, content="#!/bin/sh\n"),
        use("edit_file", path=path, old_text="[core]", new_text="[alias]"),
        use("move_file", source="plain.txt", destination=path),
        *(() if path == "gate" else (use("move_file", source=path, destination="x"),)),
        *(() if path == "gate" else (use("delete_file", path=path),)),
    )
    assert not [result for result in changes if result.ok]
    assert picture(root / ".git") == before
    assert sorted(os.listdir(root)) == [".git", "folder", "gate", "plain.txt"]
    assert os.listdir(root / "folder") == []


def test_a_folder_cannot_become_a_git_folder(use: Use, root: Path) -> None:
    assert use("write_file", path="folder/hooks/post-checkout", content="#!/bin/sh\n").ok
    assert not use("move_file", source="folder", destination=".git").ok
    assert not use("move_file", source="folder", destination="elsewhere/.Git").ok
    assert sorted(os.listdir(root)) == ["folder", "plain.txt"]


@pytest.mark.parametrize(
    "path", ["var/loom/secret_key", "var/loom", "var", "gate/secret_key", "gate", "innocent.txt"]
)
def test_tools_cannot_access_the_servers_own_data(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    data = root / "var/loom"
    data.mkdir(parents=True)
    (data / "secret_key").write_text(SECRET)
    (data / "loom.sqlite3").write_text(SECRET)
    (root / "gate").symlink_to("var/loom")
    os.link(data / "secret_key", root / "innocent.txt")
    before = picture(data)
    monkeypatch.setattr(settings.LOOM, "data_dir", data)
    with suppress(OSError):
        results = try_everything(use, path)
    monkeypatch.undo()
    assert {tool for tool, result in results.items() if result.ok} <= {
        *("list_files", "glob_files", "search_files"),
        *(LINK_ITSELF if path in ("gate", "innocent.txt") else ()),
        *(("write_file",) if path == "innocent.txt" else ()),
    }
    assert (data / "secret_key").read_text() == SECRET
    assert {name for name in before if "blobs" not in name} <= set(picture(data))


def test_searching_the_whole_folder_finds_nothing_outside(
    use: Use, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "all").symlink_to(outside)
    (root / "folder/up").symlink_to("../..")
    os.mkfifo(root / "pipe")
    for path in ("", str(tmp_path / "no programs")):
        if path:
            monkeypatch.setenv("PATH", path)
        for ignored in (False, True):
            found = use("search_files", pattern="SECRET", include_ignored=ignored)
            assert found.output == "No line matches in 1 file."
    assert use("glob_files", pattern="**/secret*").output == "No file matches."
    listed = use("list_files", depth=10).output
    assert "secret" not in listed
    assert "all  -> (outside the workspace)" in listed


@pytest.mark.parametrize("pattern", ["../**", "folder/../../outside/*", "**/../*", "/etc/../**"])
def test_patterns_with_parent_folders_are_refused(use: Use, pattern: str) -> None:
    for result in (
        use("glob_files", pattern=pattern),
        use("search_files", pattern="SECRET", glob=pattern),
    ):
        assert not result.ok
        assert "cannot contain '..'" in result.output


def test_absolute_patterns_find_nothing_outside(use: Use, outside: Path) -> None:
    assert use("glob_files", pattern=f"{outside}/*").output == "No file matches."
    assert use("glob_files", pattern="/etc/*").output == "No file matches."


@pytest.mark.parametrize(
    "pattern", ["*a" * 120 + "b", "**/" * 200 + "b", "{a,b}" * 40, "[a-" * 300]
)
def test_no_glob_pattern_blocks_the_server(use: Use, root: Path, pattern: str) -> None:
    deep = root / "/".join("a" * 30 for _ in range(20))
    deep.mkdir(parents=True)
    (deep / ("a" * 250)).touch()
    (root / ".gitignore").write_text(f"{pattern}\n" * 300)
    for result in (
        use("glob_files", pattern=pattern[:1000]),
        use("search_files", pattern="x", glob=pattern[:1000]),
        use("glob_files", pattern="**/*a"),
    ):
        assert result.output


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "(?=(a+)+$)b"])
def test_no_regular_expression_blocks_the_server(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pattern: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    monkeypatch.setattr("conversations.agent.tools.search_files.TIMEOUT_SECONDS", 0.2)
    (root / "a.txt").write_text("a" * 60 + "!\n")
    result = use("search_files", pattern=pattern)
    assert result.ok
    assert "a.txt\n" not in result.output


def test_lines_that_ripgrep_reports_are_verified(
    use: Use, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The false lines are those of a link that was in a file's place while ripgrep read it."""
    program = tmp_path / "bin/rg"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"printf './plain.txt\\0001:{SECRET}\\n./plain.txt\\0009:plain words\\n'\n"
        f"printf './../outside/secret.txt\\0001:{SECRET}\\n./plain.txt\\0001:plain words\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert use("search_files", pattern="w").output == "plain.txt\n     1: plain words"


def test_ripgrep_reads_no_configuration_and_no_options_from_patterns(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-here\n")
    evil.chmod(0o755)
    (tmp_path / "rc").write_text(f"--pre={evil}\n--follow\n")
    (root / ".ripgreprc").write_text(f"--pre={evil}\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    for pattern in ("plain", f"--pre={evil}", "-e x", "--files"):
        assert use("search_files", pattern=pattern).ok
    for name in ("--pre=x", "-f"):
        (root / name).write_text("plain\n")
    assert "--pre=x" in use("search_files", pattern="plain").output
    assert not (tmp_path / "was-here").exists()


def test_changing_a_hard_link_does_not_change_the_file_outside(
    use: Use, root: Path, outside: Path
) -> None:
    """A hard link cannot be told from the first name, so tools never write to the file itself."""
    (outside / "shared.txt").write_text("shared\n")
    for name in ("written", "edited", "deleted", "moved"):
        os.link(outside / "shared.txt", root / name)
    assert use("write_file", path="written", content="mine").ok
    assert use("edit_file", path="edited", old_text="shared", new_text="mine").ok
    assert use("delete_file", path="deleted").ok
    assert use("move_file", source="moved", destination="away").ok
    assert (outside / "shared.txt").read_text() == "shared\n"
    (outside / "shared.txt").unlink()


def test_a_huge_file_is_neither_read_whole_nor_changed(use: Use, root: Path) -> None:
    huge = root / "huge"
    huge.touch()
    os.truncate(huge, 10 * 1000**3)
    assert use("read_file", path="huge").output == "huge is not text: binary data, 10.0 GB."
    with huge.open("r+b") as file:
        file.write(b"text\n" * 3_000_000)
    assert "has 10.0 GB; only its first 10.0 MB" in use("read_file", path="huge").output
    for tool, arguments in {
        "edit_file": {"old_text": "text", "new_text": "x"},
        "write_file": {"content": "x"},
        "delete_file": {},
    }.items():
        result = use(tool, path="huge", **arguments)
        assert not result.ok, tool
        assert "10.0 GB" in result.output or "too large" in result.output
    found = use("search_files", pattern="text")
    assert "[1 file of more than 10.0 MB not searched.]" in found.output
    assert huge.stat().st_size == 10 * 1000**3


ODD_NAMES = (
    "line\nbreak.txt",
    "\u202etxt.exe",
    "bell\x07\x1b[31mred",
    "\udcff\udcfe.txt",
    " space at the ends ",
    "-rf",
    "é" * 127,
    "a\u200bb",
    "'\"`$(touch x)`",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_files_with_odd_names_work_and_are_shown_escaped(use: Use, root: Path, name: str) -> None:
    assert use("write_file", path=f"./{name}", content="odd words\n").ok
    assert use("read_file", path=name).output == "     1\todd words"
    outputs = [
        use("list_files").output,
        use("glob_files", pattern="*").output,
        use("search_files", pattern="odd").output,
        use("edit_file", path=name, old_text="odd", new_text="even").output,
    ]
    for output in outputs:
        assert shown(name) in output
        assert not set(output) & set("\x07\x1b\u202e\u200b\udcff")
    assert use("move_file", source=name, destination=f"folder/{name}").ok
    assert (root / "folder" / name).read_text() == "even words\n"
    assert use("delete_file", path=f"folder/{name}").ok
    assert sorted(os.listdir(root)) == ["folder", "plain.txt"]


def test_very_deep_folders_can_be_listed_and_searched(use: Use, root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("n" * 40, dir_fd=here)
        below = os.open("n" * 40, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert "n" * 40 in use("list_files", depth=10).output
    assert use("search_files", pattern="plain").output.startswith("plain.txt")
    assert use("glob_files", pattern="**/*.txt").output.startswith("plain.txt")


def test_the_workspace_folder_itself_cannot_be_changed(use: Use, root: Path) -> None:
    for path in (".", "./", "folder/..", str(root), f"{root}/"):
        for result in (
            use("delete_file", path=path),
            use("move_file", source=path, destination="folder/x"),
            use("write_file", path=path, content="x"),
            use("move_file", source="plain.txt", destination=path),
        ):
            assert not result.ok
    assert sorted(os.listdir(root)) == ["folder", "plain.txt"]


def test_moving_neither_overwrites_nor_moves_a_folder_into_itself(use: Use, root: Path) -> None:
    (root / "other.txt").write_text("other\n")
    (root / "case").symlink_to("folder")
    for source, target in (
        ("plain.txt", "other.txt"),
        ("plain.txt", "folder"),
        ("folder", "folder/sub"),
        ("folder", "case/sub"),
        ("folder", "other.txt"),
    ):
        assert not use("move_file", source=source, destination=target).ok
    assert (root / "other.txt").read_text() == "other\n"
    assert os.listdir(root / "folder") == []


def test_an_approved_change_fails_if_the_file_has_changed_since(
    use: Use, root: Path, outside: Path
) -> None:
    calls: dict[str, dict[str, Any]] = {
        "write_file": {"content": "new"},
        "edit_file": {"old_text": "plain", "new_text": "new"},
        "delete_file": {},
    }
    for tool, arguments in calls.items():
        file = root / "plain.txt"
        plan = use.plan(tool, path="plain.txt", **arguments)
        assert isinstance(plan, CallPlan)
        use.basis = plan.basis
        file.unlink()
        file.symlink_to(outside / "secret.txt")
        assert not use(tool, path="plain.txt", **arguments).ok
        file.unlink()
        file.write_text("plain but other words\n")
        assert not use(tool, path="plain.txt", **arguments).ok
        assert file.read_text() == "plain but other words\n"
        file.write_text("plain words\n")
        use.basis = ""


@pytest.fixture
def swapping(root: Path, outside: Path) -> Iterator[None]:
    """A thread that keeps swapping a folder and a file with links to those outside.

    The folder outside contains the same names.
    """
    (root / "real").mkdir()
    (root / "real/secret.txt").write_text("harmless\n")
    (root / "gate").symlink_to(outside)
    (root / "file").write_text("harmless\n")
    (root / "link").symlink_to(outside / "secret.txt")
    is_over = Event()

    def swap() -> None:
        while not is_over.is_set():
            for one, other in (("real", "gate"), ("file", "link")):
                with suppress(OSError):
                    os.rename(root / one, root / "spare")
                    os.rename(root / other, root / one)
                    os.rename(root / "spare", root / other)

    thread = Thread(target=swap)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("swapping")
def test_links_swapped_in_meanwhile_give_no_access_to_the_outside(use: Use) -> None:
    outputs = []
    for turn in range(16):
        for path in ("real/secret.txt", "file"):
            outputs.append(use("read_file", path=path))
            outputs.append(use("edit_file", path=path, old_text=SECRET, new_text="changed"))
        outputs.append(use("list_files", path="real"))
        if turn % 4 == 0:
            outputs.append(use("write_file", path="real/secret.txt", content="harmless\n"))
            outputs.append(use("write_file", path=f"real/new{turn}.txt", content="new"))
            outputs.append(use("search_files", pattern=SECRET))
            outputs.append(use("delete_file", path="real/secret.txt"))
    assert not [result for result in outputs if SECRET in result.output or SECRET in result.diff]
    assert any(result.ok for result in outputs)
