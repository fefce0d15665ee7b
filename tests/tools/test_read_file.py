"""``read_file``: numbered lines, pages and files that are not text."""

import base64
import json
from pathlib import Path

import pytest

from conversations.agent.tools.tool import ToolResult
from conversations.models import Attachment, Session
from conversations.runtime.service import Runtime
from tests.archive.files import image_bytes, pdf_bytes
from tests.runtime.conftest import ask
from tests.tools.using import Use, root, use
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

__all__ = ["root", "use"]

pytestmark = pytest.mark.django_db


def test_lines_are_returned_with_their_numbers(use: Use, root: Path) -> None:
    (root / "a.txt").write_bytes("one\r\n\ntwo\u2028half\nlast".encode())
    result = use("read_file", path="a.txt")
    assert result.ok
    assert result.output == "     1\tone\n     2\t\n     3\ttwo\u2028half\n     4\tlast"


def test_partial_answer_names_the_next_offset(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 5001)))
    first = use("read_file", path="a.txt").output.split("\n")
    assert first[1999:] == [
        "  2000\tline 2000",
        "[Lines 1–2000 of 5,000. Go on with offset=2001.]",
    ]
    part = use("read_file", path="a.txt", offset=4999, limit=50).output
    assert part == "  4999\tline 4999\n  5000\tline 5000"
    beyond = use("read_file", path="a.txt", offset=6000)
    assert (beyond.ok, beyond.output) == (False, "a.txt has only 5,000 lines.")


def test_lines_beyond_the_read_limit_are_not_called_missing(use: Use, root: Path) -> None:
    (root / "a.log").write_text("a line\n" * 1_500_000)
    rest = "The file has 10.5 MB; only its first 10.0 MB are read here. A command reaches the rest."
    first = use("read_file", path="a.log", limit=1)
    assert first.output == (
        f"     1\ta line\n[Lines 1–1 of at least 1,428,572. Go on with offset=2.]\n[{rest}]"
    )
    beyond = use("read_file", path="a.log", offset=1_450_000)
    assert not beyond.ok
    assert beyond.output == f"a.log: only 1,428,572 lines are read. {rest}"


def test_answer_is_limited_even_for_long_lines(use: Use, root: Path) -> None:
    (root / "long.js").write_text("x" * 1_000_000 + "\nend\n")
    result = use("read_file", path="long.js").output
    assert "… [998,000 more characters in this line]\n     2\tend" in result
    (root / "wide.txt").write_text(("y" * 1900 + "\n") * 100)
    wide = use("read_file", path="wide.txt").output
    assert len(wide) < 61_000
    assert "Go on with offset=32.]" in wide


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "file is empty."),
        (b"\0\1\2" * 1000, "file is not text: binary data, 3.0 kB."),
        (b"PK\x03\x04\0\0", "zip archive or office document, 6 bytes"),
        ("grün".encode("latin-1"), "     1\tgrün\n[Encoding: latin-1.]"),
        ("\ufeffgrün".encode("utf-16-le"), "     1\tgrün\n[Encoding: utf-16-le.]"),
        ("\ufeffgrün\n".encode(), "     1\tgrün"),
        (b"x" * 9_999_999 + "é€".encode(), "only its first 10.0 MB are read here"),
    ],
)
def test_type_and_encoding_of_a_file_are_reported(
    use: Use, root: Path, data: bytes, said: str
) -> None:
    (root / "file").write_bytes(data)
    result = use("read_file", path="file")
    assert result.ok
    assert said in result.output


def test_image_is_returned_as_content(use: Use, root: Path) -> None:
    (root / "rose.png").write_bytes(image_bytes())
    result = use("read_file", path="rose.png")
    assert result.ok, result.output
    assert result.output.startswith("rose.png is shown below (")
    [block] = result.blocks
    kept = Attachment.objects.get()
    assert (block["type"], block["attachment"]) == ("image", str(kept.uuid))
    assert (kept.name, kept.width, kept.height) == ("rose.png", 40, 30)
    assert kept.turn_number is not None


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "WEBP"])
def test_images_are_recognised_by_content_and_not_by_name(use: Use, root: Path, kind: str) -> None:
    (root / "rose.txt").write_bytes(image_bytes(kind))
    [block] = use("read_file", path="rose.txt").blocks
    assert block["source"]["media_type"] == f"image/{kind.lower()}"


@pytest.mark.parametrize("lead", [b"", b"\r\n"])
def test_pdf_is_returned_as_content(use: Use, root: Path, lead: bytes) -> None:
    (root / "plan.pdf").write_bytes(lead + pdf_bytes(pages=3))
    [block] = use("read_file", path="plan.pdf").blocks
    assert (block["type"], block["pages"]) == ("document", 3)


def test_damaged_image_is_an_error(use: Use, root: Path) -> None:
    (root / "rose.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100)
    result = use("read_file", path="rose.png")
    assert not result.ok
    assert Attachment.objects.count() == 0


@pytest.mark.parametrize("arguments", [{}, {"path": 3}, {"path": " "}, {"path": "a", "offset": -1}])
def test_invalid_arguments_are_refused_with_an_explanation(
    use: Use, arguments: dict[str, object]
) -> None:
    result = use("read_file", **arguments)
    assert not result.ok
    assert "must be a" in result.output


@pytest.mark.django_db(transaction=True)
async def test_image_is_sent_to_the_model(
    runtime: Runtime, wire: WireThread, garden: Session, tmp_path: Path
) -> None:
    (tmp_path / "rose.png").write_bytes(image_bytes())
    call = ToolCall(name="read_file", input={"path": "rose.png"})
    wire.enqueue(Scenario(tools=(call,)), Scenario(text="A rose."))
    await ask(runtime, garden, "What is in rose.png?")
    content = wire.requests[-1]["messages"][-1]["content"]
    text = json.dumps(content)
    assert "rose.png is shown below" in text
    assert base64.b64encode(image_bytes()).decode() in text
    assert '"media_type": "image/png"' in text


def test_missing_workspace_folder_is_reported_by_every_tool(use: Use, root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    gone = "The workspace's folder does not exist."
    for name, arguments in (
        ("read_file", {"path": "a.txt"}),
        ("list_files", {}),
        ("write_file", {"path": "a.txt", "content": "a"}),
        ("shell_execute", {"command": "ls"}),
        ("git_command", {"arguments": "status"}),
    ):
        assert use(name, **arguments).output == gone, name
    answer = use.plan("shell_execute", command="ls")
    assert isinstance(answer, ToolResult)  # no approval is requested
    assert answer.output == gone


def test_tilde_is_not_expanded(use: Use, root: Path) -> None:
    (root / "~").mkdir()
    for name in ("~/a.txt", "~a.txt"):
        (root / name).write_text("words\n")
    for path in ("~", "~/a.txt"):
        assert "'~' is not expanded" in use("read_file", path=path).output
    for path in ("./~/a.txt", "~a.txt"):
        assert use("read_file", path=path).output.endswith("words")
