"""``search_files``, ``glob_files`` and ``list_files``: looking for files and lines."""

import asyncio
import os
from pathlib import Path

import pytest

from conversations.agent.tools import search_files
from tests.sandbox.processes import find_children
from tests.tools.using import Use, root, use

__all__ = ["root", "use"]

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["ripgrep", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Run each search with both engines."""
    if request.param == "python":
        monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    return str(request.param)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.fixture
def garden(root: Path) -> Path:
    files = {
        "README.md": "# Garden\r\nRoses and tulips\r\n",
        "src/beds.py": "def water(bed):\n    # roses\n    return bed\n\n\ndef cut(rose):\n    1\n",
        "src/deep/soil.py": "ROSES = 3\n",
        "build/out.py": "roses = 1\n",
        "node_modules/x/rose.js": "roses\n",
        ".git/config": "roses\n",
        ".hidden/notes.txt": "roses (hidden)\n",
        "latin.txt": "gr\udcfcne roses\n",
        "data.bin": "roses\0roses\n",
        "empty.txt": "",
        ".gitignore": "# made\nbuild/\n*.log\n!keep.log\n/src/*.tmp\n",
        "src/a.log": "roses\n",
        "src/keep.log": "roses kept\n",
        "src/x.tmp": "roses\n",
        "src/deep/y.tmp": "roses here\n",
    }
    write(root, **{name.replace("/", "__"): text for name, text in files.items()})
    (root / "utf16.txt").write_bytes("\ufeffroses too\r\n".encode("utf-16-le"))
    (root / "link.py").symlink_to("src/beds.py")
    return root


FOUND = [
    ".hidden/notes.txt",
    "latin.txt",
    "src/beds.py",
    "src/deep/y.tmp",
    "src/keep.log",
    "utf16.txt",
]


def files_in(output: str) -> list[str]:
    return [line for line in output.split("\n") if line and line[0] not in " ["]


def test_lines_are_found_by_regular_expression(use: Use, garden: Path, engine: str) -> None:
    result = use("search_files", pattern=r"\brose?s\b")
    assert result.ok
    assert files_in(result.output) == FOUND
    assert "src/beds.py\n     2:     # roses\n" in result.output
    assert "latin.txt\n     1: grüne roses\n" in result.output
    assert "utf16.txt\n     1: roses too\n" in result.output
    assert result.output.endswith(
        "[Not searched because git ignores them or they are too large: build/, node_modules/.]"
    )


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("größe", ["größe"]),
        ("gr.n", ["grün"]),
        ("Stra[a-zß]e", ["Straße"]),
        (r"^\w+che$", ["Küche"]),
        ("KÜCHE", ["Küche"]),
        ("plain", ["plain"]),
        (r"plai\w", ["plain"]),
        ("a .quote", ["a \x93quote\x94"]),
    ],
)
def test_latin_1_file_is_searched_in_its_encoding(
    use: Use, root: Path, engine: str, pattern: str, words: list[str]
) -> None:
    text = "größe\r\ngrün\rgrün\ngrün\nStraße\nKüche\nplain\na \x93quote\x94\n"
    for name, encoding in (("a", "utf-8"), ("b", "latin-1"), ("c", "utf-8"), ("d", "latin-1")):
        (root / f"{name}.txt").write_bytes(text.encode(encoding))
    (root / "image.bin").write_bytes(b"\0\xff plain")
    result = use("search_files", pattern=pattern, ignore_case=pattern.isupper())
    assert files_in(result.output) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    for word in words:
        assert f"{result.output}\n".count(f": {word}\n") == 4


def test_options_narrow_and_widen_a_search(use: Use, garden: Path, engine: str) -> None:
    def found(**arguments: object) -> list[str]:
        return files_in(use("search_files", **arguments).output)

    assert found(pattern="ROSES", ignore_case=True, glob="*.{md,py}") == [
        "README.md",
        "src/beds.py",
        "src/deep/soil.py",
    ]
    assert found(pattern="(hidden", literal=True) == [".hidden/notes.txt"]
    assert found(pattern="rose", path="src", glob="*.py") == ["src/beds.py"]
    assert found(pattern="rose", path="src", glob="deep/**") == ["src/deep/y.tmp"]
    assert found(pattern="rose", path="src", glob=f"{garden}/src/*.py") == ["src/beds.py"]
    assert found(pattern="rose", path="src/beds.py") == ["src/beds.py"]
    assert found(pattern="tulips$") == ["README.md"]
    widened = found(pattern="roses", include_ignored=True)
    assert set(widened) - set(FOUND) == {
        "build/out.py",
        "node_modules/x/rose.js",
        "src/a.log",
        "src/x.tmp",
    }
    assert use("search_files", pattern="nowhere").output.startswith("No line matches in ")


def test_context_is_shown_once_and_gaps_are_marked(use: Use, root: Path, engine: str) -> None:
    (root / "a.txt").write_text(
        "".join(f"{n}{'!' if n in (3, 5, 11) else ''}\n" for n in range(1, 15))
    )
    assert use("search_files", pattern="!", context=2).output == "\n".join(
        (
            "a.txt",
            *("     1- 1", "     2- 2", "     3: 3!", "     4- 4", "     5: 5!", "     6- 6"),
            *("     7- 7", "  --", "     9- 9", "    10- 10", "    11: 11!", "    12- 12"),
            "    13- 13",
        )
    )


def test_pages_follow_each_other_without_gaps(use: Use, root: Path, engine: str) -> None:
    for name in ("a b", "a/z", "a.txt", "é%41"):
        write(root, **{name.replace("/", "__"): "".join(f"x{n}\n" for n in range(7))})
    pages, cursor = list[str](), ""
    while True:
        output = use("search_files", pattern="x", limit=5, cursor=cursor).output
        pages.append(output)
        if "cursor=" not in output:
            break
        cursor = output.split('cursor="')[1].split('"')[0]
    lines = [line for page in pages for line in page.split("\n") if line.startswith("     ")]
    assert lines == [f"     {n + 1}: x{n}" for _ in range(4) for n in range(7)]
    assert len(pages) == 6


def test_answer_is_limited_in_size(use: Use, root: Path, engine: str) -> None:
    (root / "wide.txt").write_text(("x" * 5000 + "\n") * 1000)
    (root / "min.js").write_text("x" * 5_000_000)
    output = use("search_files", pattern="x", limit=500).output
    assert len(output) < 70_000
    assert "cursor=" in output
    assert "more characters in this line]" in output


def test_expression_that_ripgrep_lacks_is_run_by_python(use: Use, garden: Path) -> None:
    result = use("search_files", pattern=r"(?<=def )(\w+)\((?!rose)")
    assert files_in(result.output)[0] == "src/beds.py"
    assert "     1: def water(bed):" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": "("}, "not a valid regular expression"),
        ({"pattern": ""}, "'pattern' must be"),
        ({"pattern": "a\nb"}, "line break"),
        ({"pattern": "x", "path": "none"}, "none does not exist"),
        ({"pattern": "x", "glob": "../*"}, "cannot contain"),
        ({"pattern": "x", "glob": "{" + "a," * 70 + "}"}, "at most 64 alternatives"),
        ({"pattern": "x", "cursor": "7"}, "'cursor'"),
        ({"pattern": "x", "literal": "perhaps"}, "true or false"),
    ],
)
def test_invalid_search_is_refused_with_an_explanation(
    use: Use, root: Path, engine: str, arguments: dict[str, object], said: str
) -> None:
    result = use("search_files", **arguments)
    assert not result.ok
    assert said in result.output


def test_endless_expression_is_stopped_by_the_timeout(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    monkeypatch.setattr(search_files, "TIMEOUT_SECONDS", 1.0)
    (root / "a.txt").write_text("a" * 40 + "b\n")
    result = use("search_files", pattern="(a+)+$")
    assert result.ok
    assert "[Stopped after 1 s; the result is incomplete." in result.output


def test_file_that_takes_too_much_memory_is_not_searched(use: Use, root: Path) -> None:
    (root / "a.min.js").write_text("ab" * 2_000_000)
    (root / "b.js").write_text("ab\n")
    result = use("search_files", pattern="^((a)|(b))*(?!x)$")
    assert result.ok
    assert files_in(result.output) == ["b.js"]
    assert "[1 file not searched: the expression takes too much memory.]" in result.output


def test_glob_lists_files_newest_first(use: Use, garden: Path) -> None:
    for age, name in enumerate(("src/deep/soil.py", "src/beds.py", "README.md")):
        os.utime(garden / name, (1e9 - age, 1e9 - age))
    assert use("glob_files", pattern="**/*.py").output.split("\n")[:2] == [
        "src/deep/soil.py  10 bytes",
        "src/beds.py  66 bytes",
    ]
    assert "No file matches." in use("glob_files", pattern="src/*.md").output
    assert use("glob_files", pattern="*.py", path="src/deep").output == "src/deep/soil.py  10 bytes"
    for path in (".", "src"):
        whole = use("glob_files", pattern=f"{garden}/src/d*/*.py", path=path)
        assert whole.output.startswith("src/deep/soil.py  10 bytes")
    ignored = use("glob_files", pattern="*.{py,js}", include_ignored=True).output
    assert {"build/out.py", "node_modules/x/rose.js"} <= {
        line.split("  ")[0] for line in ignored.split("\n")
    }
    assert ".git/" not in ignored


def test_only_the_newest_of_many_files_are_named(use: Use, root: Path) -> None:
    for number in range(205):
        (root / f"{number}.txt").touch()
    output = use("glob_files", pattern="*").output.split("\n")
    assert len(output) == 201
    assert output[-1] == "[And 5 older files; choose a folder or a narrower pattern.]"


def test_folder_is_listed_with_types_and_sizes(use: Use, garden: Path, tmp_path: Path) -> None:
    (garden / "out").symlink_to(tmp_path)
    os.mkfifo(garden / "pipe")
    listed = use("list_files").output.split("\n")
    assert listed[:4] == [".git/", ".gitignore  41 bytes", ".hidden/", "README.md  28 bytes"]
    assert {
        "build/",
        "link.py  -> src/beds.py",
        "out  -> (outside the workspace)",
        "pipe  (special file)",
    } <= set(listed)
    tree = use("list_files", path="src", depth=3).output.split("\n")
    assert tree == [
        "src/beds.py  66 bytes",
        "src/deep/",
        "src/deep/soil.py  10 bytes",
        "src/deep/y.tmp  11 bytes",
        "src/keep.log  11 bytes",
    ]
    assert "is not a folder: README.md  28 bytes" in use("list_files", path="README.md").output
    (garden / "bare").mkdir()
    assert use("list_files", path="bare").output == "bare is empty."


def test_long_folder_is_listed_in_pages(use: Use, root: Path) -> None:
    for number in range(1203):
        (root / f"f {number:04}%41").touch()
    names, cursor = list[str](), ""
    for _ in range(3):
        output = use("list_files", cursor=cursor).output.split("\n")
        names += [line.split("  ")[0] for line in output if not line.startswith("More")]
        cursor = output[-1].partition('cursor="')[2].rstrip('".')
    assert names == [f"f {number:04}%41" for number in range(1203)]
    assert cursor == ""


def test_cancelled_search_leaves_no_process_running(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    (root / "a.txt").write_text("a" * 60 + "!\n")
    context = use.context()

    async def cancel() -> None:
        call = asyncio.create_task(search_files.TOOL.run(context, {"pattern": "(a+)+$"}))
        while not find_children("search_worker"):
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel())
    assert find_children("search_worker") == []
