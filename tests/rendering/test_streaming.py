"""Streaming of Markdown: final blocks, the open block, patches and cost."""

import random
import re
from collections.abc import Iterator

import pytest
from django.utils.translation import override
from hypothesis import example, given
from hypothesis import strategies as st

from conversations.rendering import streaming
from conversations.rendering.markdown import render_markdown
from conversations.rendering.messages import fill_marks
from conversations.rendering.sanitiser import sanitise
from conversations.rendering.streaming import ALL, BlockStream, close_open_markup
from tests.properties import costly

from .test_markdown import Inspector, render_plain_code
from .texts import ANSWER, DEFINITION, HOSTILE, any_text, markdown_like

LONG_BLOCKS = {
    "list": "- item **b** with `code` and some more text of ordinary length\n",
    "loose list": "1. item **b** with `code` and some more text\n\n",
    "nested list": "- item\n  - nested **b**\n  - and more\n",
    "table": "| cell `x` | **bold** | 123 |\n",
    "fence": "x = call(1, 'a')  # comment\n",
    "paragraph": "words **and** words\nin lines ",
    "quotation": "> a line **b** of a quotation\n",
    "indented code": "    code\n\n",
    "one line": "a *b* c `d` and more, ",
    "definitions": DEFINITION,
    "items in a row": "- ",
}
OPENINGS = {"table": "| a | b | c |\n|---|---|---|\n", "fence": "```python\n"}


def pieces(text: str, *, sizes: random.Random) -> Iterator[str]:
    position = 0
    while position < len(text):
        size = sizes.choice([1, 1, 2, 3, 5, 9, 30])
        yield text[position : position + size]
        position += size


def stream(text: str, *, seed: int = 0, looks: bool = True) -> BlockStream:
    """Feed a text in small pieces and render the open block now and then."""
    sizes = random.Random(seed)
    blocks = BlockStream()
    final: list[str] = []
    for piece in pieces(text, sizes=sizes):
        final += blocks.feed(piece)
        assert blocks.blocks == final
        if looks and sizes.random() < 0.4:
            Inspector(blocks.open_html())
    return blocks


def open_html(text: str) -> str:
    blocks = BlockStream()
    blocks.feed(text)
    return "".join(blocks.blocks) + blocks.open_html()


def ended(blocks: BlockStream) -> str:
    """Return the HTML of the final blocks and of the rest, as if the text had ended."""
    rest = blocks._open.source + ("\n" if blocks._holds_return else "")
    return "".join(blocks.blocks) + render_markdown(rest)


class TestFinalBlocks:
    @given(markdown_like | any_text, st.integers(0, 1000))
    @example("## a | b\n|-|-|\n", 0)
    @example("``` a | b\n|-|-|\n", 0)
    @example("- a | b\n- c | d\n|-|-|\n", 0)
    @example("10. a\n   11. b\n   12. c\n\n   x\n", 0)
    @example("- a\n\n- b\n\nc\n", 0)
    @example("* a\n* * *\n* b\n", 0)
    @example("a\r\n\r", 0)
    @example("$$ a | b\n-|-\n$$ x\n|-|\n", 0)
    @example("a | b\n-|-\n| $$ c | d\n| e |\n$$ x\n|-|\n", 0)
    def test_final_blocks_equal_the_full_render_for_any_pieces(self, text: str, seed: int) -> None:
        blocks = stream(text, seed=seed)
        if not re.search(r"\]:", text):
            assert ended(blocks) == render_markdown(text)

    @costly
    @given(
        st.lists(st.sampled_from(sorted(LONG_BLOCKS.values())), min_size=1, max_size=5),
        st.integers(0, 1000),
    )
    def test_final_blocks_equal_the_full_render_with_deferred_parsing(
        self, parts: list[str], seed: int
    ) -> None:
        text = "".join(part * 8 for part in parts if part != DEFINITION)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streaming, "_MAX_LINEWISE_CHARS", 20)
            patch.setattr(streaming, "MAX_RENDERED_CHARS", 60)
            assert ended(stream(text, seed=seed)) == render_markdown(text)

    @pytest.mark.parametrize("seed", range(5))
    def test_a_streamed_answer_equals_the_full_render(self, seed: int) -> None:
        blocks = stream(ANSWER, seed=seed)
        assert len(blocks.blocks) == 10
        assert ended(blocks) == render_markdown(ANSWER)

    @pytest.mark.parametrize(
        "text",
        [
            *["para\n\n", "# heading\n", "a\n---\n", "***\n", "```\ncode\n```\n", "> a\n\n"],
            *["|a|\n|-|\n\n", "~~~~\n~~~\n~~~~  \n", "- a\n\nB", "    code\n\nB", "- a\n# b\n"],
        ],
    )
    def test_a_block_is_final_as_soon_as_it_has_ended(self, text: str) -> None:
        blocks = BlockStream()
        early = [blocks.feed(character) for character in text[:-1]]
        assert not any(early)
        assert blocks.feed(text[-1])

    @pytest.mark.parametrize(
        "text",
        [
            *[
                "para\n",
                "- a\n\n",
                "    code\n\n",
                "```\ncode\n",
                "```\n```",
                "> a\n",
                "|a|\n|-|\n",
            ],
            *["# a | b\n", "~~~ a | b\n", "- a\n\nb"[:-1], "1. a\n\n   ", "```\n\n\n"],
        ],
    )
    def test_a_block_is_not_final_while_it_may_continue(self, text: str) -> None:
        blocks = BlockStream()
        assert blocks.feed(text) == []

    def test_a_reference_definition_makes_the_stream_inexact(self) -> None:
        text = f"see [a]\n\n{DEFINITION}\nmore\n"
        assert 'href="https://example.com/a"' in render_markdown(text)
        assert 'href="https://example.com/a"' not in ended(stream(text))

    def test_an_unused_definition_keeps_the_stream_exact(self) -> None:
        text = f"a\n\n{DEFINITION}\n\nb\n"
        assert ended(stream(text)) == render_markdown(text)

    def test_line_endings_may_be_split_between_pieces(self) -> None:
        blocks = BlockStream()
        for piece in ("a\r", "\n\r", "\nb\r", "c", "\r"):
            blocks.feed(piece)
        assert ended(blocks) == render_markdown("a\n\nb\nc\n")

    def test_an_empty_piece_gives_no_html(self) -> None:
        blocks = BlockStream()
        assert (blocks.feed(""), blocks.open_html(), ended(blocks)) == ([], "", "")


class TestOpenBlock:
    @pytest.mark.parametrize(
        ("text", "html"),
        [
            ("a **bold", "<p>a <strong>bold</strong></p>\n"),
            ("a **bold*", "<p>a <strong>bold</strong></p>\n"),
            ("a **", "<p>a</p>\n"),
            ("a `co", "<p>a <code>co</code></p>\n"),
            ("a ``co`", "<p>a <code>co</code></p>\n"),
            ("a ~~old", "<p>a <s>old</s></p>\n"),
            ("***both", "<p><em><strong>both</strong></em></p>\n"),
            ("**a `b", "<p><strong>a <code>b</code></strong></p>\n"),
            ("see [the do", "<p>see the do</p>\n"),
            ("see [the docs](https://x.o", "<p>see the docs</p>\n"),
            ('see [the docs](https://x.org "ti', "<p>see the docs</p>\n"),
            ("an ![alt](https://x", "<p>an alt</p>\n"),
            ("[![alt](https://x.org)](htt", "alt (x.org)"),
            ("<https://x.org", 'title="x.org"'),
            ("2 * 3 and a*b", "<p>2 * 3 and a*b</p>\n"),
            ("snake_case and __init", "<strong>init</strong>"),
            ("x[0] = 1", "<p>x[0] = 1</p>\n"),
            ("Text\n-", "<p>Text</p>\n"),
            ("Text\n=", "<p>Text</p>\n"),
            ("Text\n``", "<p>Text</p>\n"),
            ("Text\n```pyth", "<p>Text</p>\n"),
            ("- a\n-", '<ul dir="auto">\n<li>a</li>\n</ul>\n'),
            ("- a\n- [", "<li></li>"),
            ("1. a\n2.", '<ol dir="auto">\n<li>a</li>\n</ol>\n'),
            ("-", ""),
            ("#", ""),
            ("# **H", "<h1><strong>H</strong></h1>\n"),
            ("> *q", '<blockquote dir="auto">\n<p><em>q</em></p>\n</blockquote>\n'),
            ("a\\", "<p>a</p>\n"),
            ("这是**重", "<p>这是<strong>重</strong></p>\n"),
            ("a <", "<p>a</p>\n"),
            ("a<br", "<p>a</p>\n"),
            ("a<br /", "<p>a</p>\n"),
            ("a <br /> b *c", "<p>a <br>\nb <em>c</em></p>\n"),
            ("a <bread", "<p>a &lt;bread</p>\n"),
        ],
    )
    def test_unfinished_markup_is_closed_or_hidden(self, text: str, html: str) -> None:
        assert html in fill_marks(open_html(text))
        assert html or not open_html(text)

    @pytest.mark.parametrize(
        "text", ["| a | **b", "| a | b |\n", "| a | b |\n|-", "| a | b |\n|--|--|\n"]
    )
    def test_a_table_is_shown_as_one_from_its_header_on(self, text: str) -> None:
        html = open_html(text)
        assert html.count("<th>") == 2
        assert "---" not in html

    def test_rows_join_the_table_one_by_one(self) -> None:
        html = open_html("| a | b |\n|:--|--:|\n| c | d |\n| **e")
        assert html.count("<table") == html.count("<tbody>") == 1
        assert '<td class="ta-left"><strong>e</strong></td>' in html
        assert html.count("<tr>") == 3

    @pytest.mark.parametrize("looseness", ["\n", "\n\n"])
    def test_items_join_the_list_one_by_one(self, looseness: str) -> None:
        items = looseness.join(f"{number}. item `{number}`" for number in range(3, 9))
        blocks = stream(items)
        assert blocks.open_html() == render_markdown(items)

    def test_a_list_that_becomes_loose_is_loose_as_a_whole(self) -> None:
        blocks = stream("- a\n- b\n- c\n\n- d\n- e")
        assert blocks.open_html() == render_markdown("- a\n- b\n- c\n\n- d\n- e")

    def test_text_after_a_list_is_shown(self) -> None:
        assert open_html("- a\n- b\n\n1986 was") == (
            '<ul dir="auto">\n<li>a</li>\n<li>b</li>\n</ul>\n<p>1986 was</p>\n'
        )

    @given(st.sampled_from(["```py\n", "~~~\n", "  ````\n"]), any_text)
    def test_an_open_fence_equals_its_final_render(self, opening: str, code: str) -> None:
        text = opening + code.replace("`", "'").replace("~", "-").replace("\t", " ") + "x"
        blocks = stream(text)
        assert blocks.blocks == []
        assert sanitise(blocks.open_html()) == render_plain_code(text)

    def test_an_open_fence_hides_an_unfinished_closing_line(self) -> None:
        assert open_html("```py\nx = 1\n``") == render_plain_code("```py\nx = 1\n")

    def test_markup_in_code_is_not_closed(self) -> None:
        for text in ("- a\n  ```\n  b = **c[", "> ~~~\n> b = **c["):
            assert "b = **c[" in open_html(text)

    def test_an_open_paragraph_equals_its_final_render(self) -> None:
        """A paragraph may be rendered in several parts, which must not change its HTML."""
        text = (
            "The **quick** `brown` fox, *so* [to speak](https://x.org/a_b), 2 * 3 <b> & ~~so~~ on."
        )
        blocks = BlockStream()
        for character in text:
            blocks.feed(character)
            blocks.open_html()
        assert blocks.open_html() == render_markdown(text)

    def test_every_prefix_of_an_answer_can_be_shown(self) -> None:
        blocks = BlockStream()
        for character in ANSWER:
            blocks.feed(character)
            Inspector(blocks.open_html())

    def test_reading_the_open_block_changes_nothing(self) -> None:
        looked, unwatched = stream(ANSWER, looks=True), stream(ANSWER, looks=False)
        assert looked.open_html() == unwatched.open_html()
        assert looked.blocks == unwatched.blocks

    def test_the_open_block_is_rendered_once_between_pieces(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocks = stream("a **b")
        first = blocks.open_html()
        monkeypatch.setattr(streaming.StreamingBlock, "html", None)
        assert blocks.open_html() is first

    @given(markdown_like)
    def test_any_text_can_be_closed(self, text: str) -> None:
        assert isinstance(close_open_markup(text), str)


class TestPatches:
    @given(markdown_like | any_text, st.integers(0, 1000))
    @example("a *b* \U0001f600 c & d < e ```\nx\n```\n\n- \U0001f600\n- b **c** d", 0)
    def test_patches_add_up_to_the_open_block(self, text: str, seed: int) -> None:
        sizes = random.Random(seed)
        blocks, page = BlockStream(), ""
        for piece in pieces(text, sizes=sizes):
            if blocks.feed(piece):
                page = ""
            drop, added = blocks.patch()
            units = page.encode("utf-16-le", "surrogatepass")
            kept = units[: 0 if drop == ALL else len(units) - 2 * drop].decode(
                "utf-16-le", "surrogatepass"
            )
            assert kept.rfind("<") <= kept.rfind(">")
            assert not re.search(r"&[^;]*\Z", kept)
            # The words on the page have another length than the marks that the server counts.
            with override("de"):
                page = kept + fill_marks(added)
                assert page == fill_marks(blocks.open_html())

    @pytest.mark.parametrize("name", ["paragraph", "one line", "list", "table", "fence"])
    def test_patches_stay_short_in_a_long_block(self, name: str) -> None:
        text = OPENINGS.get(name, "") + LONG_BLOCKS[name] * 60
        blocks = BlockStream()
        fed = (blocks.feed(text[start : start + 6]) for start in range(0, len(text), 6))
        sizes = [len(blocks.patch()[1]) for final in fed if not final]
        assert sum(sizes) < 60 * len(sizes)


class TestCost:
    @pytest.fixture
    def parsed(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return a list that collects the lengths of texts that are parsed for their blocks."""
        lengths: list[int] = []
        parse_blocks = streaming.parse_blocks

        def count(source: str, **options: object) -> object:
            lengths.append(len(source))
            return parse_blocks(source, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(streaming, "parse_blocks", count)
        return lengths

    @pytest.fixture
    def looked_at(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return a list that collects the lengths of texts that streaming parses or renders."""
        lengths: list[int] = []

        def watch(module: object, name: str) -> None:
            function = getattr(module, name)

            def count(source: str, **options: object) -> object:
                lengths.append(len(source))
                return function(source, **options)

            monkeypatch.setattr(module, name, count)

        for module, name in (
            (streaming, "parse"),
            (streaming, "render_markdown"),
            (streaming, "render_source"),
            (streaming, "parse"),
            (streaming, "parse_inline"),
        ):
            watch(module, name)
        return lengths

    @pytest.mark.parametrize("name", LONG_BLOCKS)
    def test_feeding_a_long_block_is_linear(self, name: str, parsed: list[int]) -> None:
        text = (OPENINGS.get(name, "") + LONG_BLOCKS[name] * 5_000)[:12_000]
        for size in (5, 40):
            blocks = BlockStream()
            for start in range(0, len(text), size):
                blocks.feed(text[start : start + size])
            assert sum(parsed) < 8 * len(text) + 170_000
            parsed.clear()

    @pytest.mark.parametrize("piece", HOSTILE)
    def test_feeding_hostile_text_is_linear(self, piece: str, parsed: list[int]) -> None:
        text = (piece * 7_000)[:7_000]
        blocks = BlockStream()
        for start in range(0, len(text), 16):
            blocks.feed(text[start : start + 16])
        assert sum(parsed) < 12 * len(text) + 200_000

    def test_text_without_a_line_end_is_not_parsed(self, parsed: list[int]) -> None:
        stream("words and words " * 100, looks=False)
        assert parsed == []

    @pytest.mark.parametrize("name", ["list", "loose list", "nested list", "table", "fence"])
    def test_reading_a_long_block_renders_only_its_last_part(
        self, name: str, looked_at: list[int]
    ) -> None:
        text = OPENINGS.get(name, "") + LONG_BLOCKS[name] * 160
        blocks = BlockStream()
        for start in range(0, len(text), 16):
            blocks.feed(text[start : start + 16])
            looked_at.clear()
            blocks.open_html()
            assert sum(looked_at) < 400

    def test_reading_a_long_paragraph_renders_only_its_last_words(
        self, looked_at: list[int]
    ) -> None:
        text = "The **quick** brown `fox` and [others](https://x.org) jump, " * 50
        blocks = BlockStream()
        for start in range(0, len(text), 8):
            blocks.feed(text[start : start + 8])
            looked_at.clear()
            blocks.open_html()
            assert sum(looked_at) < 150

    def test_reading_any_other_block_has_a_limited_cost(self, looked_at: list[int]) -> None:
        blocks = BlockStream()
        for number, line in enumerate(["> a **b** c\n"] * 2_000):
            blocks.feed(line)
            if number % 50 == 0:
                blocks.open_html()
        assert max(looked_at) <= streaming.MAX_RENDERED_CHARS
        assert '<p class="verbatim">' in blocks.open_html()

    @pytest.mark.parametrize("start", ["", "- a\n- b\n- ", "|a|b|\n|-|-|\n|c|d|\n|e|"])
    def test_a_block_that_is_too_long_to_render_is_shown_verbatim(self, start: str) -> None:
        html = open_html(start + "word **" * 2_000 + "needle")
        assert "needle" in html
        assert '<p class="verbatim">' in html

    def test_half_a_megabyte_of_code_can_be_streamed(self) -> None:
        blocks = BlockStream()
        blocks.feed("```python\n")
        for number in range(12_000):
            blocks.feed(f"x = {number:30}  # {number}")
            blocks.feed("\n")
        assert len(blocks.open_html()) > 500_000
