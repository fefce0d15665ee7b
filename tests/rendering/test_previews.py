"""Previews of files as HTML for a frame, for each kind of file."""

import json
import re
import resource
import subprocess
import sys
import time
import tracemalloc
import zlib
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.utils.translation import override
from PIL import Image

from conversations.domain.text import MAX_JSON_VALUES
from conversations.rendering import previews, programs
from conversations.rendering.code_blocks import (
    MAX_CODE_CHARS,
    MAX_COLOURED_CHARS,
    highlight_code,
)
from conversations.rendering.previews import Preview, preview_kind, render_preview
from conversations.rendering.source_text import MARK_END, MARK_START

PROGRAMS = Path(programs.__file__).parent
TOO_MUCH = "This PDF takes too much time or memory"


def render(name: str, data: bytes | str, **more: Any) -> Preview:
    raw = data.encode() if isinstance(data, str) else data
    try:
        text: str | None = None if b"\0" in raw else raw.decode()
    except UnicodeDecodeError:
        text = None
    return render_preview(name, raw, text, **{"is_cut": False} | more)


def picture(kind: str, *, pages: int = 1) -> bytes:
    drawn = BytesIO()
    first, *rest = [Image.new("RGB", (60, 80), (n, 0, 0)) for n in range(pages)]
    more: dict[str, Any] = {"save_all": True, "append_images": rest} if kind == "PDF" else {}
    first.save(drawn, kind, **more)
    return drawn.getvalue()


@pytest.mark.parametrize("suffix", ["txt", "py", "md", "html", "csv", "ipynb", "svg", "png"])
def test_the_note_of_an_empty_file_says_that_it_is_empty(suffix: str) -> None:
    assert render(f"a.{suffix}", b"") == Preview("", "The file is empty.")
    mark = b"\xef\xbb\xbf"
    assert render_preview(f"a.{suffix}", mark, "", is_cut=False).note == "The file is empty."


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.md", b"# x", "markdown"),
        ("A.HTML", b"<p>", "html"),
        ("a.csv", b"a,b", "table"),
        ("a.ipynb", b"{}", "notebook"),
        ("a.svg", b"<svg>", "svg"),
        ("a.py", b"x", "text"),
        ("Makefile", b"x", "text"),
        ("a.txt", b"%PDF-1.4 x", "pdf"),  # the content decides
        ("a.pdf", b"\n%PDF-1.4 \0", "pdf"),
        ("a.pdf", b"\n%PDF-1.4", "pdf"),
        ("a.txt", b"x %PDF-1.4", "text"),
        ("a.html", picture("PNG"), "image"),
        ("a.jpg", b"BM is how this text begins", "text"),
        ("a.png", b"\0\1\2", ""),
    ],
)
def test_the_kind_is_found_by_content_and_name(name: str, data: bytes, kind: str) -> None:
    assert preview_kind(name, data, is_text=b"\0" not in data and kind != "image") == kind


def test_code_has_numbers_and_colours() -> None:
    shown = render("a.py", "def f():\n    return 1\n")
    assert '<pre class="numbers" aria-hidden="true">1\n2</pre>' in shown.html
    assert '<span class="k">def</span>' in shown.html


def test_a_long_text_is_cut_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "MAX_LINES", 3)
    shown = render("a.txt", "1\n2\n3\n4\n5\n")
    assert shown.note == "2 more lines are not shown."
    assert "beginning" in render("a.txt", "x", is_cut=True).note


def test_hidden_characters_are_named() -> None:
    assert "U+202E" in render("a.txt", "a\u202eb").html
    assert "U+202E" in render("a.csv", "a\u202eb,c").html


def test_csv_and_tsv_are_shown_as_tables() -> None:
    shown = render("a.csv", 'name;note\nAnn;"a; ""b"""\n<b>;\n')
    assert shown.html == (
        '<table class="sheet"><thead><tr><th></th><th>name</th><th>note</th></tr></thead><tbody>'
        '<tr><th>1</th><td>Ann</td><td>a; "b"</td></tr>'
        "<tr><th>2</th><td>&lt;b&gt;</td><td></td></tr></tbody></table>"
    )
    assert "<td>2</td>" in render("a.tsv", "a,b\tc\n1\t2\n").html


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ('"a, b, c, d";"e ""f, g"", h"', 2),
        ('5" long;b;c', 3),
        ('"a, b\nc, d";e', 2),
        ('a;"never, ended, at, all', 2),
    ],
)
def test_separators_in_quotes_do_not_split_a_cell(head: str, cells: int) -> None:
    assert render("a.csv", head).html.count("<th>") == cells + 1


def test_a_large_table_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "MAX_ROWS", 2)
    monkeypatch.setattr(previews, "MAX_COLUMNS", 2)
    shown = render("a.csv", "a,b,c\n" + "1,2,3\n" * 5)
    assert shown.note == "3 more rows are not shown. 1 more column is not shown."
    assert shown.html.count("<td>") == 4
    # The CSV reader refuses so long a field, so the file is shown as text.
    assert "numbers" in render("a.csv", f'a,"{"x" * 200_000}"').html


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_memory_does_not_grow_with_lines_that_are_not_shown(name: str) -> None:
    source = "ab\n" * 200_000  # ten megabytes as a list of lines
    tracemalloc.start()
    try:
        note = render_preview(name, b"ab", source, is_cut=False).note
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "not shown" in note
    assert peak < 8_000_000


def test_the_cells_and_outputs_of_a_notebook_are_shown() -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# Title\n", "<script>1</script>"]},
        {
            "cell_type": "code",
            "execution_count": 3,
            "source": "import x",
            "outputs": [
                {"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n"]},
                {"output_type": "display_data", "data": {"image/png": "QUJD\n"}},
                {"output_type": "display_data", "data": {"image/png": '"><script>'}},
                {
                    "output_type": "execute_result",
                    "data": {"text/html": "<b onclick=x>bold</b><script>1</script>"},
                },
                {"output_type": "error", "traceback": ["Trace", "back"]},
                {"output_type": "display_data", "data": {"text/plain": "<plain>"}},
                "no output",
            ],
        },
        {"cell_type": "raw", "source": "<raw>"},
        {"cell_type": "code", "source": 7, "outputs": None},
    ]
    html = render("a.ipynb", json.dumps({"cells": cells, "metadata": {}})).html
    for part in (
        "<h1>Title</h1>",
        "[3]",
        '<span class="k">import</span>',
        ">red</span>",
        "data:image/png;base64,QUJD",
        '<div class="given"><b>bold</b></div>',
        "Trace\nback",
        "&lt;plain&gt;",
        "&lt;raw&gt;",
    ):
        assert part in html, part
    assert "<script" not in html


def test_marks_in_a_notebook_are_not_filled() -> None:
    """The characters of a mark may also be written as character references."""
    forged = f"{MARK_START}Denied{MARK_END}"
    printed = {"output_type": "stream", "text": forged}
    given = [{"data": {"text/html": text}} for text in (forged, "&#xfdd2;Denied&#xfdd3;")]
    cells = [{"cell_type": "code", "source": forged, "outputs": [printed, *given]}]
    with override("de"):
        html = render("a.ipynb", json.dumps({"cells": cells})).html
    assert html.count("\ufffdDenied\ufffd") == 4


@pytest.mark.parametrize("text", [" ", "{", "[]", '{"cells": 1}', '{"cells": [], "metadata": 1}'])
def test_an_invalid_notebook_is_shown_as_text(text: str) -> None:
    assert 'class="source"' in render("a.ipynb", text).html


def test_a_notebook_of_very_many_values_is_shown_as_source() -> None:
    """Each value takes many times its bytes, and anybody may open a shared notebook."""
    text = '{"cells": [' + "[]," * MAX_JSON_VALUES + "{}]}"
    shown = render("a.ipynb", text)
    assert 'class="source"' in shown.html
    assert shown.note.startswith("This notebook has more than 1\u202f000\u202f000 values,")


DEEP = "<div>\n" * 200_000
CROSSED = "".join(f"<b x={number}>" for number in range(20_000)) + "<p>x" * 20_000


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a program to one second of processor time instead of several."""
    limits = "MAX_CPU_SECONDS, MAX_MEMORY_BYTES = {},"
    for name, seconds in (("clean_pages.py", 5), ("draw_pdf.py", 20), ("lex_code.py", 3)):
        given = (PROGRAMS / name).read_text()
        assert limits.format(seconds) in given
        (tmp_path / name).write_text(given.replace(limits.format(seconds), limits.format(1)))
    monkeypatch.setattr(programs, "__file__", str(tmp_path / "programs.py"))


@pytest.mark.usefixtures("impatient")
def test_html_that_takes_too_long_is_shown_as_source() -> None:
    """The cleaner's time is quadratic in the depth of elements.

    Its memory is quadratic in the number of elements that are left open.
    """
    shown = render("a.html", DEEP)
    assert not shown.is_page
    assert shown.note.startswith("This page is too large to render")
    assert shown.note.endswith("more lines are not shown.")
    assert 'class="source"' in shown.html


UNENDING = ("/* " * 160 + "\n") * 200


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["x.js", "x.ipynb"])
def test_code_that_takes_too_long_stays_plain(name: str) -> None:
    """A lexer's time is quadratic in the length of comments that do not end."""
    cells = [{"cell_type": "code", "source": UNENDING}]
    notebook = {"cells": cells, "metadata": {"language_info": {"name": "javascript"}}}
    html = render(name, json.dumps(notebook) if name == "x.ipynb" else UNENDING).html
    assert UNENDING.rstrip("\n") in html
    assert "<span" not in html.replace('<span class="count">', "")


def test_a_long_file_has_the_colours_of_a_short_one() -> None:
    source = 'def name(one: int) -> str:  # a "remark" <here>\n    return f"{one} 🫘"\n' * 800
    assert MAX_CODE_CHARS < len(source) <= MAX_COLOURED_CHARS
    assert highlight_code(source, "python").rstrip("\n") in render("a.py", source).html
    half = len(source) // 2
    cells = [{"cell_type": "code", "source": part} for part in (source[:half], source[half:])]
    html = render("a.ipynb", json.dumps({"cells": cells})).html
    for part in (source[:half], source[half:]):
        assert highlight_code(part, "python") in html
    assert "<span" not in render("a.py", source * 2).html


def test_waiting_for_a_pdf_does_not_delay_other_previews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_SECONDS", 5.0)
    drawing = programs._slots["draw_pdf.py"]
    with drawing, drawing:
        assert render("a.html", "<p>Beans</p>").is_page
        monkeypatch.setattr(programs, "MAX_SECONDS", 0.01)
        shown = render("a.pdf", picture("PDF", pages=1))
    assert shown.note.startswith(TOO_MUCH)


@pytest.mark.usefixtures("impatient")
def test_a_notebook_shows_plain_text_if_html_takes_too_long() -> None:
    data = {"text/html": CROSSED, "text/plain": "plain"}
    outputs = [{"data": data}, {"data": {"text/plain": "another"}}]
    html = render("a.ipynb", json.dumps({"cells": [{"outputs": outputs}]})).html
    assert ">plain<" in html
    assert ">another<" in html


def test_the_cells_of_a_notebook_share_one_budget() -> None:
    cells = [{"cell_type": "markdown", "source": "*a* " * 8_000} for _ in range(40)]
    html = render("a.ipynb", json.dumps({"cells": cells})).html
    assert "<em>a</em>" in html
    assert 'class="verbatim"' in html
    outputs = [{"output_type": "stream", "text": f"line {number}"} for number in range(200)]
    html = render("a.ipynb", json.dumps({"cells": [{"outputs": outputs}]})).html
    assert html.count("The rest of this output is not shown.") == 1
    assert "line 99" in html
    assert "line 100" not in html


def test_half_a_surrogate_pair_in_a_notebook_is_replaced() -> None:
    outputs = [{"data": {"text/html": "<b>\ud800</b>"}}]
    html = render("a.ipynb", json.dumps({"cells": [{"outputs": outputs}]})).html
    assert '<div class="given"><b>\ufffd</b></div>' in html


def test_front_matter_is_shown_as_code_and_not_as_a_heading() -> None:
    text = "---\nname: beans\ndescription: How to grow them\n---\n\n# Beans\n"
    shown = render("SKILL.md", text).html
    assert re.findall(r"<h\d>.*?</h\d>", shown) == ["<h1>Beans</h1>"]
    assert 'data-lang="yaml"' in shown
    assert "How to grow them" in shown
    assert "<hr>" in render("a.md", "---\n\nWords: two\n\n---\n").html


def test_html_keeps_its_style_and_loses_active_content() -> None:
    shown = render(
        "a.html",
        "<html><head><title>T</title><link rel=preconnect href=//e.x><base href=//e.x>"
        "<meta http-equiv=refresh content=0><style>p{color:red}</style></head>"
        '<body><p class=a style="margin:0" onclick=x>text</p><a href="#p">in</a>'
        '<a href="https://e.x">out</a><img src="//e.x/i"><img src="data:image/png;base64,QQ">'
        "<svg viewBox='0 0 1 1'><path d='M0'/><use href='//e.x#a'/></svg><iframe src=//e.x>"
        "</iframe>"
        "<noscript>no script</noscript><form action=//e.x><input value=1></form>"
        "<script>1</script></body></html>",
    )
    assert shown.is_page
    assert shown.html == (
        '<style>p{color:red}</style><p class="a" style="margin:0">text</p><a href="#p">in</a>'
        '<a>out</a><img><img src="data:image/png;base64,QQ">'
        '<svg viewBox="0 0 1 1"><path d="M0"></path></svg><input value="1">'
    )


def test_partial_files_are_refused_or_shown_as_source() -> None:
    assert "too large" in render("a.png", picture("PNG"), is_cut=True).note
    # The beginning of a page would be another page, so its source is shown.
    assert 'class="source"' in render("a.html", "<p>x", is_cut=True).html
    assert "This type of file cannot be previewed" in render("a.bin", b"\0\1").note


def test_images_are_embedded_as_data_urls() -> None:
    assert (
        'alt="a &quot;b.png" src="data:image/png;base64,' in render('a "b.png', picture("PNG")).html
    )
    svg = "<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>"
    assert '<img alt="a.svg" src="data:image/svg+xml;base64,' in render("a.svg", svg).html


def test_the_pages_of_a_pdf_are_shown_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "MAX_PDF_PAGES", 2)
    data = picture("PDF", pages=5)
    shown = render("a.pdf", data)
    assert shown.html.count("data:image/webp;base64,") == 2
    assert shown.note == "Pages 1 to 2 of 5."
    last = render("a.pdf", data, first_page=5)
    assert 'alt="Page 5"' in last.html
    assert last.note == "Pages 5 to 5 of 5."
    assert render("a.pdf", data, first_page=9).note == "This PDF ends at page 5."
    assert 'alt="Page 2"' in render("a.pdf", b"\n" + data).html


def pdf(*objects: bytes) -> bytes:
    """Return a PDF of these objects, of which the first is the catalog."""
    data, places = b"%PDF-1.7\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    start, count = len(data), len(objects) + 1
    data += b"xref\n0 %d\n0000000000 65535 f \n" % count
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    return data + trailer % (count, start)


BLANK = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]>>"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("memory", ["1_500_000_000", "200_000_000"])
def test_a_pdf_that_exceeds_a_limit_is_not_called_damaged(tmp_path: Path, memory: str) -> None:
    program = tmp_path / "draw_pdf.py"
    program.write_text(program.read_text().replace("1_500_000_000", memory))
    drawing = zlib.compress(b"0 0 m 50 50 l 100 0 l f\n" * 600_000, 9)
    kids = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    page = BLANK.replace(b">>", b"/Contents 4 0 R>>")
    content = b"<</Filter/FlateDecode/Length %d>>\nstream\n%s\nendstream"
    slow = pdf(b"<</Type/Catalog/Pages 2 0 R>>", kids, page, content % (len(drawing), drawing))
    assert render("a.pdf", slow).note == f"{TOO_MUCH} to preview. Download it to open it."


def test_a_damaged_page_does_not_hide_the_others() -> None:
    kids = b"<</Type/Pages/Kids[3 0 R 9 0 R 4 0 R]/Count 3>>"
    shown = render("a.pdf", pdf(b"<</Type/Catalog/Pages 2 0 R>>", kids, BLANK, BLANK))
    assert shown.html.count("data:image/webp;base64,") == 2
    assert "<p>Page 2 cannot be shown because it is damaged.</p>" in shown.html
    assert not shown.note


def test_a_pdf_form_is_shown_filled_in() -> None:
    data = pdf(
        b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[4 0 R]/DR<</Font<</F 5 0 R>>>>>>>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        BLANK.replace(b">>", b"/Annots[4 0 R]>>"),
        b"<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(Filled in)/Rect[5 5 95 95]/P 3 0 R/F 4"
        b"/DA(/F 12 Tf 0 g)>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    _, _, page = render("a.pdf", data).html.partition("base64,")
    drawn = Image.open(BytesIO(b64decode(page.partition('"')[0])))
    darkest, _ = drawn.convert("L").getextrema()
    assert isinstance(darkest, int)
    assert darkest < 100


def test_the_finished_pages_are_shown_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = (
        "import itertools, runpy, sys, time\n"
        "ticks = itertools.count(step=10)\n"
        "time.monotonic = lambda: next(ticks)\n"
        "sys.argv[1:] = '1', '5', '100'\n"
        f"runpy.run_path({str(PROGRAMS / 'draw_pdf.py')!r}, run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", slow]
    done = subprocess.run(command, input=picture("PDF", pages=5), capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert (found["total"], len(found["pages"])) == (5, 2)
    monkeypatch.setattr(programs, "MAX_SECONDS", 0.0)
    assert render("a.pdf", picture("PDF", pages=1)).note.startswith(TOO_MUCH)


@pytest.mark.parametrize(
    "program",
    [
        *("rendering/clean_pages.py", "rendering/draw_pdf.py", "rendering/lex_code.py"),
        "archive/pdf_pages.py",
        *("agent/files/search_worker.py", "agent/tools/page_worker.py"),
    ],
)
def test_a_program_that_crashes_writes_no_dump_of_its_memory(program: str) -> None:
    command = [sys.executable, "-I", str(PROGRAMS.parent / program), *"111"]
    with programs.start_program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            found = resource.prlimit(process.pid, resource.RLIMIT_CORE)
            if found == (0, 0):
                break
            time.sleep(0.01)
        process.kill()
    assert found == (0, 0)


def test_a_pdf_that_crashes_its_program_is_reported_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: Any, **__: Any) -> bytes:
        raise subprocess.CalledProcessError(-11, [])

    monkeypatch.setattr(programs, "ask_program", crash)
    assert "damaged or protected" in render("a.pdf", picture("PDF", pages=1)).note


@pytest.mark.parametrize("data", [b"%PDF-", b"%PDF-1.7\n" + b"\xff\0" * 1000])
def test_a_damaged_pdf_is_reported_as_damaged(data: bytes) -> None:
    assert "damaged or protected" in render("a.pdf", data).note
