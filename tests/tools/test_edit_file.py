"""``edit_file``: finding the place, tolerating small differences and reporting the edit."""

import stat
from pathlib import Path

import pytest

from conversations.agent.tools import file_changes, file_edits
from conversations.domain.tool_calls import CallPlan
from conversations.models import FileChange
from tests.changes.conftest import picture
from tests.tools.using import Use, root, use

__all__ = ["root", "use"]

pytestmark = pytest.mark.django_db

POEM = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


def test_edit_replaces_the_text_and_shows_the_place(use: Use, root: Path) -> None:
    (root / "poem.txt").write_text(POEM)
    (root / "poem.txt").chmod(0o640)
    result = use("edit_file", path="poem.txt", old_text="four\nfive", new_text="4\n5\n5½")
    assert result.ok
    assert result.output == (
        "Edited poem.txt: 1 place (line 4).\n"
        "     1\tone\n     2\ttwo\n     3\tthree\n     4\t4\n     5\t5\n     6\t5½\n"
        "     7\tsix\n     8\tseven\n     9\teight"
    )
    assert result.diff == (
        "--- a/poem.txt\n+++ b/poem.txt\n@@ -1,8 +1,9 @@\n one\n two\n three\n-four\n-five\n"
        "+4\n+5\n+5½\n six\n seven\n eight\n"
    )
    assert (root / "poem.txt").read_text() == POEM.replace("four\nfive", "4\n5\n5½")
    assert stat.S_IMODE((root / "poem.txt").stat().st_mode) == 0o640
    assert list(FileChange.objects.values_list("path", flat=True)) == ["poem.txt"]


def test_edit_accepts_other_argument_names_and_an_empty_new_text(use: Use, root: Path) -> None:
    (root / "poem.txt").write_text(POEM)
    assert use("edit_file", file_path="poem.txt", old_string="two\n", new_string="").ok
    assert (root / "poem.txt").read_text() == POEM.replace("two\n", "")


def test_text_that_occurs_often_is_replaced_only_with_replace_all(use: Use, root: Path) -> None:
    (root / "a.py").write_text("x = 1\ny = 2\nx = 1\n")
    refused = use("edit_file", path="a.py", old_text="x = 1", new_text="x = 3")
    assert not refused.ok
    assert "is there 2 times, in lines 1, 3" in refused.output
    assert "     3\tx = 1" in refused.output
    done = use("edit_file", path="a.py", old_text="x = 1", new_text="x = 3", replace_all=True)
    assert done.output.startswith("Edited a.py: 2 places (lines 1, 3).")
    assert (root / "a.py").read_text() == "x = 3\ny = 2\nx = 3\n"


@pytest.mark.parametrize(
    ("there", "old", "new", "after", "drift"),
    [
        pytest.param(
            "a = 1  \nb = 2\t\n", "a = 1\nb = 2", "c = 3", "c = 3\n", "space at the end",
            id="space at the end of lines",
        ),
        pytest.param(
            "if x:\n\treturn 1\n", "if x:\n    return 1", "if x:\n    if y:\n        return 2",
            "if x:\n\tif y:\n\t\treturn 2\n", "indentation", id="tabs in the file",
        ),
        pytest.param(
            "class A:\n    def f(self):\n        return 1\n",
            "def f(self):\n    return 1", "def f(self):\n    x = 1\n    return x",
            "class A:\n    def f(self):\n        x = 1\n        return x\n", None,
            id="less indented",
        ),
        pytest.param(
            "say(“hello”)\n", 'say("hello")', 'say("bye")', 'say("bye")\n', "typographic",
            id="typographic quotes",
        ),
        pytest.param(
            "a\n\tb\nc\n", "     1\ta\n     2\t\tb", "     1\ta\n     2\t\tx\ny",
            "a\n\tx\ny\nc\n", "the line numbers", id="numbers of lines",
        ),
        pytest.param("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n", "", id="crlf"),
        pytest.param("a\r\nb\nc\n", "b\nc", "d\n", "a\r\nd\n\n", "", id="mixed newlines"),
        pytest.param("a\nb", "b", "c\r\nd", "a\nc\nd", "", id="no newline at the end"),
        pytest.param(
            "a\r\nb\r\nc\r\n", "\nb", "\nx", "a\r\nx\r\nc\r\n", "", id="a newline before, crlf"
        ),
        pytest.param(
            "a\r\nb\r\nc\r\n", "\nb", "", "a\r\nc\r\n", "", id="a newline before, deleted"
        ),
        pytest.param(
            "a\nb  \nc\n", "a\nb\n", "", "c\n", "space at the end", id="whole lines deleted"
        ),
        pytest.param(
            "a\r\n\tb\r\nc", "\n    b", "", "a\r\nc", "indentation", id="a whole line deleted, crlf"
        ),
        pytest.param(
            "a\n\tb", "    b\n", "", "a\n", "indentation", id="the last line deleted"
        ),
        pytest.param(
            "a\n\tb\nc\n", "    b\n", "\n", "a\n\nc\n", "indentation", id="a line emptied"
        ),
    ],
)  # fmt: skip
def test_small_differences_are_tolerated_if_one_place_matches(
    use: Use, root: Path, there: str, old: str, new: str, after: str, drift: str | None
) -> None:
    (root / "a.txt").write_bytes(there.encode())
    result = use("edit_file", path="a.txt", old_text=old, new_text=new)
    assert result.ok, result.output
    assert (root / "a.txt").read_bytes().decode() == after
    if drift is not None:
        assert ("found apart from" in result.output) == bool(drift)
        assert drift in result.output


def test_near_match_in_several_places_is_refused(use: Use, root: Path) -> None:
    (root / "a.py").write_text("\tx = 1\n    x = 1\n")
    result = use(
        "edit_file", path="a.py", old_text="        x  =  1", new_text="y", replace_all=True
    )
    assert not result.ok
    assert "apart from indentation or spacing, it is there 2 times, in lines 1, 2" in result.output
    assert (root / "a.py").read_text() == "\tx = 1\n    x = 1\n"


def test_mixed_newlines_match_in_all_places(use: Use, root: Path) -> None:
    (root / "a.txt").write_bytes(b"a\r\nx\nx\r\n")
    sent = {"path": "a.txt", "old_text": "\nx", "new_text": "\ny"}
    assert "is there 2 times" in use("edit_file", **sent).output
    assert use("edit_file", **sent, replace_all=True).ok
    assert (root / "a.txt").read_bytes() == b"a\r\ny\r\ny\r\n"


def test_missing_text_is_compared_with_the_most_similar_lines(use: Use, root: Path) -> None:
    (root / "a.py").write_text("import os\n\n\ndef total(items):\n    return sum(items)\n")
    near = use(
        "edit_file", path="a.py", old_text="def total(rows):\n    return sum(rows)", new_text="x"
    )
    assert not near.ok
    assert near.output.startswith("'old_text' is not in a.py.\nLines 4–5 are like it")
    assert "- def total(rows):" in near.output
    assert "+ def total(items):" in near.output
    far = use("edit_file", path="a.py", old_text="€€€€€€€", new_text="x")
    assert "No text in it is similar" in far.output


def test_edit_keeps_encoding_and_byte_order_mark(use: Use, root: Path) -> None:
    (root / "utf8").write_bytes("\ufeffgrün\n".encode())
    (root / "utf16").write_bytes("\ufeffgrün\r\n".encode("utf-16-le"))
    (root / "latin").write_bytes("grün\n".encode("latin-1"))
    for name in ("utf8", "utf16", "latin"):
        assert use("edit_file", path=name, old_text="grün", new_text="größer").ok
    assert (root / "utf8").read_bytes() == "\ufeffgrößer\n".encode()
    assert (root / "utf16").read_bytes() == "\ufeffgrößer\r\n".encode("utf-16-le")
    assert (root / "latin").read_bytes() == "größer\n".encode("latin-1")
    refused = use("edit_file", path="latin", old_text="größer", new_text="10 €")
    assert "latin-1 cannot represent '\\u20ac'" in refused.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"old_text": "", "new_text": "x"}, "write_file"),
        ({"old_text": "a"}, "'new_text'"),
        ({"old_text": "one", "new_text": "one"}, "identical"),
        ({"old_text": 3, "new_text": "x"}, "must be a text"),
        ({"old_text": "one", "new_text": "\ud800"}, "cannot store"),
        ({"old_text": "one", "new_text": "x", "path": "none"}, "none does not exist"),
        ({"old_text": "one", "new_text": "x", "path": "binary"}, "binary"),
        ({"old_text": "one", "new_text": "x", "path": "fixed"}, "read-only"),
        ({"old_text": "one", "new_text": "x", "path": "empty"}, "is empty"),
    ],
)
def test_invalid_edit_is_refused_with_an_explanation(
    use: Use, root: Path, arguments: dict[str, object], said: str
) -> None:
    (root / "poem.txt").write_text(POEM)
    (root / "binary").write_bytes(b"one\0")
    (root / "empty").touch()
    (root / "fixed").write_text("one")
    (root / "fixed").chmod(0o444)
    for result in (
        use("edit_file", **{"path": "poem.txt", **arguments}),
        use.plan("edit_file", **{"path": "poem.txt", **arguments}),
    ):
        assert not isinstance(result, CallPlan)
        assert not result.ok
        assert said in result.output
    assert FileChange.objects.count() == 0


def test_plan_shows_the_edit_and_expires_when_the_file_changes(use: Use, root: Path) -> None:
    file = root / "poem.txt"
    file.write_text(POEM)
    plan = use.plan("edit_file", path="poem.txt", old_text="four", new_text="4")
    assert isinstance(plan, CallPlan)
    assert (plan.effect, plan.summary, plan.kind_key) == ("changes", "Edit poem.txt", "files")
    assert "-four\n+4\n" in plan.diff
    assert file.read_text() == POEM
    use.basis = plan.basis
    file.write_text(POEM + "nine\n")
    refused = use("edit_file", path="poem.txt", old_text="four", new_text="4")
    assert not refused.ok
    assert "changed after this call was shown" in refused.output
    assert file.read_text() == POEM + "nine\n"
    file.write_text(POEM)
    assert use("edit_file", path="poem.txt", old_text="four", new_text="4").ok


def test_most_similar_line_is_shown_if_none_matches(use: Use, root: Path) -> None:
    (root / "a.py").write_text("x = 1\n\ndef total_of(items, tax):\n    return 0\n")
    result = use("edit_file", path="a.py", old_text="def total_of(item, taxes):", new_text="x")
    assert "Lines 3–3 are like it" in result.output
    assert "+ def total_of(items, tax):" in result.output


def test_edit_of_many_places_gives_a_short_answer(
    use: Use, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.txt").write_text("word\n" * 1000)
    line_of, counted = file_edits.line_of, []
    monkeypatch.setattr(file_edits, "line_of", lambda *at: counted.append(at) or line_of(*at))
    result = use("edit_file", path="a.txt", old_text="word", new_text="w", replace_all=True)
    assert "1,000 places (lines 1, 2," in result.output
    assert ", 20 and 980 more)" in result.output
    assert len(result.output) < 400
    refused = use("edit_file", path="a.txt", old_text="w", new_text="x")
    assert "is there 1000 times, in lines 1, 2," in refused.output
    assert len(refused.output) < 600
    # Each call of ``line_of`` counts from the beginning of the file.
    assert len(counted) == 2 * file_changes.MAX_NAMED_PLACES


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("edit_file", {"path": "current/app.conf", "old_text": "0", "new_text": "1"}),
        ("write_file", {"path": "current/app.conf", "content": "1"}),
        ("write_file", {"path": "current/new.conf", "content": "1"}),
        ("delete_file", {"path": "current/app.conf"}),
        ("move_file", {"source": "x", "destination": "current/x"}),
    ],
)
def test_approval_does_not_apply_after_a_link_was_redirected(
    use: Use, root: Path, tool: str, more: dict[str, str]
) -> None:
    for name in ("v1", "v2"):
        (root / name).mkdir()
        (root / name / "app.conf").write_text("debug = 0\n")
    (root / "x").touch()
    (root / "current").symlink_to("v1")
    plan = use.plan(tool, **more)
    assert isinstance(plan, CallPlan)
    name = more.get("path", "").replace("current", "v1")
    assert f"It is {name}." in plan.note if name else "to v1/x" in plan.summary
    before = picture(root / "v2")
    (root / "current").unlink()
    (root / "current").symlink_to("v2")
    use.basis = plan.basis
    assert "changed after this call was shown" in use(tool, **more).output
    assert picture(root / "v2") == before
    (root / "current").unlink()
    (root / "current").symlink_to("v1")
    assert use(tool, **more).ok


def test_plan_explains_a_path_only_if_it_leads_elsewhere(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("a\n")
    for path in ("a.txt", "./a.txt", f"{root}/a.txt", "b/../a.txt"):
        plan = use.plan("edit_file", path=path, old_text="a", new_text="b")
        assert isinstance(plan, CallPlan)
        assert plan.note == ""


def test_edit_that_changes_only_newlines_is_refused(use: Use, root: Path) -> None:
    (root / "a.txt").write_bytes(b"one\ntwo\n")
    plan = use.plan("edit_file", path="a.txt", old_text="one\n", new_text="one\r\n")
    assert not isinstance(plan, CallPlan)
    assert "keeps its newlines" in plan.output
    assert "write_file" in plan.output
