"""The renderers of Markdown, person's text and plain text: output, safety and cost."""

import re
import sys
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given

from conversations.rendering import code_blocks, markdown
from conversations.rendering.code_blocks import MAX_CODE_CHARS, TOKEN_CLASSES, find_language
from conversations.rendering.markdown import (
    is_plain_paragraph,
    render_markdown,
    render_person_text,
    render_plain,
    render_source,
)
from conversations.rendering.markdown_parser import (
    TABLE_END,
    TABLE_START,
    WorkBudget,
    parse,
    render_tokens,
)
from conversations.rendering.messages import fill_marks
from conversations.rendering.source_text import normalise_source

from .texts import ANSWER, HOSTILE, any_text, markdown_like

LINK = 'target="_blank" rel="noopener noreferrer nofollow"'
APP_CSS = Path(__file__).parents[2] / "static" / "css" / "app.css"

ALLOWED_ATTRIBUTES = {
    "a": {"class", "href", "title", "target", "rel"},
    "button": {"type", "class", "data-action", "data-note", "aria-label", "aria-pressed"},
    "code": {"class"},
    "div": {
        "class",
        "data-file",
        "data-kind",
        "data-lang",
        "data-lines",
        "data-note",
        "tabindex",
        "role",
        "aria-label",
        "dir",
    },
    "bdi": {"class"},
    "blockquote": {"dir"},
    "li": {"class"},
    "ol": {"class", "dir", "start"},
    "p": {"class"},
    "pre": {"tabindex"},
    "span": {"class", "title"},
    "td": {"class"},
    "th": {"class"},
    "ul": {"class", "dir"},
    "sup": {"class"},
}
MATH_ATTRIBUTES = {
    *("accent", "accentunder", "alttext", "class", "display", "displaystyle", "form", "height"),
    *("linethickness", "lspace", "mathcolor", "mathvariant", "maxsize", "minsize"),
    *("movablelimits", "notation", "rspace", "scriptlevel", "stretchy", "symmetric", "width"),
    *("voffset", "depth", "columnspan", "largeop", "fence", "separator"),
}
MATH_TAGS = {
    *("math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded"),
    *("mphantom", "mprescripts", "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup"),
    *("msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"),
}
ALLOWED_ATTRIBUTES |= dict.fromkeys(MATH_TAGS, MATH_ATTRIBUTES)
PLAIN_TAGS = {"br", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "s", "strong"}
TABLE_TAGS = {"table", "tbody", "thead", "tr"}


class Inspector(HTMLParser):
    """A parser that fails on any element or attribute that rendered text may not have."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in PLAIN_TAGS | TABLE_TAGS or tag in ALLOWED_ATTRIBUTES, tag
        assert {name for name, _ in attrs} <= ALLOWED_ATTRIBUTES.get(tag, set()), (tag, attrs)
        href = dict(attrs).get("href")
        assert href is None or re.match("(?i)https?://|mailto:", href), href
        assert dict(attrs).get("dir", "auto") == "auto"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)


def render_plain_code(text: str) -> str:
    """Render Markdown without colours in code, as a stream shows an open block."""
    return render_source(normalise_source(text), highlight=False, work=WorkBudget())


def code_of(html: str) -> str:
    """Return the content of the only code block."""
    (code,) = re.findall(r'<code class="hl">(.*?)</code></pre>', html, re.DOTALL)
    return str(code)


class TestMarkdown:
    def test_a_whole_answer_is_rendered(self) -> None:
        html = render_markdown(ANSWER)
        Inspector(html)
        for part in (
            "<h1>Reading the settings</h1>",
            "<strong>settings</strong>",
            "<code>config/settings.py</code>",
            '<li class="task-list-item">☑ and a task</li>',
            "<s>y</s>",
            '<span class="gd">-old</span>\n<span class="gi">+new</span>',
            '<blockquote dir="auto">\n<p>A quotation\nof two lines</p>\n</blockquote>',
            "<h2>Setext heading</h2>",
            "<hr>",
        ):
            assert part in html

    def test_table_alignment_is_rendered_as_classes(self) -> None:
        html = render_markdown("|a|b|c|d|\n|:-|-:|:-:|-|\n|1|2|3|4|\n")
        assert html.startswith(TABLE_START + "<thead>")
        assert html.endswith(TABLE_END)
        assert '<th class="ta-left">a</th>\n<th class="ta-right">b</th>' in html
        assert '<td class="ta-center">3</td>\n<td>4</td>' in html
        assert "style" not in html

    @pytest.mark.parametrize(
        ("source", "strong"),
        [
            ("**注意：**请看", "注意："),
            ("这是**“重点”**内容", "“重点”"),
            ("これは**「重要」**です", "「重要」"),
            ("이것은 **강조(emphasis)**는", "강조(emphasis)"),
        ],
    )
    def test_emphasis_needs_no_spaces_in_languages_without_spaces(
        self, source: str, strong: str
    ) -> None:
        before, _, after = source.split("**")
        assert render_markdown(source) == f"<p>{before}<strong>{strong}</strong>{after}</p>\n"

    @pytest.mark.parametrize("tag", ["<br>", "<br/>", "<br />", "<BR>"])
    def test_a_br_in_a_table_cell_breaks_the_line(self, tag: str) -> None:
        html = render_markdown(f"|a|b|\n|-|-|\n|one{tag}*two*|`{tag}`|\n")
        assert "<td>one<br>\n<em>two</em></td>" in html
        assert f"<td><code>{escape(tag)}</code></td>" in html

    @pytest.mark.parametrize(
        ("source", "shown"),
        [
            ("- [ ] open", '<li class="task-list-item">☐ open</li>'),
            ("1. [x] done\n\n2. b", "<p>☑ done</p>"),
            ("- [X] ```\n  a", "☑ <div"),
        ],
    )
    def test_tasks_are_rendered_as_text(self, source: str, shown: str) -> None:
        html = render_markdown(source)
        assert shown in html
        assert "<input" not in html

    def test_text_that_is_nested_too_deeply_is_kept(self) -> None:
        html = render_markdown("> " * 40 + "deep\nlazy")
        assert "&gt; deep\nlazy</p>" in html
        assert html.count("<blockquote") == html.count("</blockquote>") < 20
        assert "needle" in render_markdown(
            "".join(f"{'  ' * depth}- item\n" for depth in range(30)) + "  " * 30 + "needle"
        )

    def test_code_is_rendered_without_colours_on_demand(self) -> None:
        source = "```python\nx = 1\n```\n"
        assert "<span" in code_of(render_markdown(source))
        assert code_of(render_plain_code(source)) == "x = 1\n"

    @given(any_text | markdown_like)
    def test_any_string_is_rendered_without_the_fallback(self, text: str) -> None:
        source = normalise_source(text)
        html = render_source(source, highlight=True, work=WorkBudget())
        assert html == render_markdown(text)
        html.encode()
        Inspector(html)

    @given(any_text | markdown_like)
    def test_the_shortcut_for_plain_paragraphs_gives_the_same_html(self, text: str) -> None:
        source = normalise_source(text)
        if is_plain_paragraph(source):
            assert render_source(source, highlight=True, work=WorkBudget()) == render_tokens(
                parse(source, work=WorkBudget()), highlight=True, work=WorkBudget()
            )

    @pytest.mark.parametrize(
        "source",
        [
            "Plain words, (in brackets) - and 'quotes'.",
            'One line\n"the" next\nthird: 3 > 2!\n',
            "é\u3000",
        ],
    )
    def test_the_shortcut_covers_ordinary_prose(self, source: str) -> None:
        assert is_plain_paragraph(source)
        assert render_markdown(source) == render_tokens(
            parse(source, work=WorkBudget()), highlight=True, work=WorkBudget()
        )

    def test_the_text_is_shown_when_the_parser_fails(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(source: str) -> None:
            raise RecursionError

        monkeypatch.setattr(markdown, "parse", fail)
        assert render_markdown("a *b* <i>") == '<p class="verbatim">a *b* &lt;i&gt;</p>\n'
        assert "text_not_rendered" in caplog.text

    def test_all_line_endings_are_treated_alike(self) -> None:
        assert render_markdown("a\r\n\r\n- b\r- c") == render_markdown("a\n\n- b\n- c")


class TestLinks:
    @pytest.mark.parametrize(
        ("source", "href", "host", "label"),
        [
            ("[a](https://x.org/p?q=1&r=2 't')", "https://x.org/p?q=1&amp;r=2", "x.org", "a"),
            ("<https://x.org>", "https://x.org", "x.org", "https://x.org"),
            ("https://x.org/a_b_c", "https://x.org/a_b_c", "x.org", "https://x.org/a_b_c"),
            ("<me@x.org>", "mailto:me@x.org", "me@x.org", "me@x.org"),
            ("[m](mailto:me@x.org?subject=a)", "mailto:me@x.org?subject=a", "me@x.org", "m"),
            (
                "[a](https://good.org@evil.org:8/)",
                "https://good.org@evil.org:8/",
                "evil.org:8",
                "a",
            ),
            (
                "[a](https://bücher.example)",
                "https://xn--bcher-kva.example",
                "xn--bcher-kva.example",
                "a",
            ),
        ],
    )
    def test_the_title_of_a_link_is_its_host(
        self, source: str, href: str, host: str, label: str
    ) -> None:
        link = f'<a href="{href}" title="{host}" {LINK}>{label}</a>'
        assert render_markdown(source) == f"<p>{link}</p>\n"

    @pytest.mark.parametrize(
        "address",
        [
            *["javascript:alert(1)", "JaVaScRiPt:alert(1)", "&#106;avascript:alert(1)"],
            *["data:text/html,x", "vbscript:x", "file:///etc/passwd", "ftp://x.org", "tel:1"],
            *["/admin/", "src/main.py", "#top", "//evil.org", "https:/x.org", "https:x.org"],
            *["http://", "https://:80/", "<https://a b/>", "https://x%20y/", "\\\\evil.org"],
        ],
    )
    def test_other_addresses_are_not_linked(self, address: str) -> None:
        html = render_markdown(f"[label]({address})")
        assert "<a" not in html
        assert "label" in html

    def test_the_path_of_a_blocked_link_is_its_title(self) -> None:
        html = render_markdown("[settings](src/settings.py)")
        assert html == '<p><span class="link-blocked" title="src/settings.py">settings</span></p>\n'

    def test_links_are_never_nested(self) -> None:
        html = fill_marks(
            render_markdown(
                "[a <https://in.org> https://in.org ![i](https://i.org)](https://out.org)"
            )
        )
        assert html.count("<a ") == html.count("</a>") == 1
        assert 'href="https://out.org"' in html
        assert '<span class="img-blocked">image: i (i.org)</span>' in html

    @pytest.mark.parametrize(
        ("source", "href"),
        [
            ("(see https://x.org/a_(b)).", "https://x.org/a_(b)"),
            ("**https://x.org**, yes", "https://x.org"),
            ("请看https://x.org。谢谢", "https://x.org"),
            ("| https://x.org |\n|---|\n", "https://x.org"),
            ("<b>https://x.org</b>", "https://x.org"),
            ("https://x.org/?a=1&copy=2!", "https://x.org/?a=1&amp;copy=2"),
        ],
    )
    def test_bare_addresses_are_linked(self, source: str, href: str) -> None:
        assert re.findall('href="(.*?)"', render_markdown(source)) == [href]

    @pytest.mark.parametrize(
        "source",
        [
            *["`https://x.org`", "xhttps://x.org", "\\https://x.org", "http://", "://x.org"],
            *["std::vector<std::string>", "<std::string>", "ftp://x.org", "https://a@x.org"],
        ],
    )
    def test_other_text_is_not_linked(self, source: str) -> None:
        assert "<a" not in render_markdown(source)

    def test_angle_brackets_that_are_no_links_are_kept(self) -> None:
        assert render_markdown("map<std::string>") == "<p>map&lt;std::string&gt;</p>\n"


class TestHostileContent:
    @pytest.mark.parametrize(
        "source",
        [
            "![a](https://evil.org/?q=secret)",
            "![a][r]\n\n[r]: https://evil.org/x.png",
            "[![a](https://evil.org/x.png)](https://evil.org)",
            "![![a](https://evil.org/1)](https://evil.org/2)",
            "<img src=https://evil.org/x.png>",
            "![a](data:image/png;base64,AAAA)",
            "![a](//evil.org/x.png)",
            "- ![a](https://evil.org/x.png)\n\n| ![a](https://evil.org) |\n|-|\n",
        ],
    )
    def test_a_remote_image_is_never_rendered(self, source: str) -> None:
        for html in (render_markdown(source), render_person_text(source)):
            assert "<img" not in html
            assert "src=" not in html.replace("&lt;img src=", "")

    def test_an_image_is_shown_as_a_labelled_link(self) -> None:
        html = fill_marks(render_markdown('![my *alt*](https://x.org/a?b&c "title")'))
        link = f'<a class="img-blocked" href="https://x.org/a?b&amp;c" title="x.org" {LINK}>'
        assert html == f"<p>{link}image: my alt (x.org)</a></p>\n"

    @pytest.mark.parametrize("address", ["data:image/png;base64,AA", "x.png", "javascript:x"])
    def test_an_image_without_a_web_address_is_a_label_without_a_link(self, address: str) -> None:
        html = fill_marks(render_markdown(f"![alt]({address})"))
        assert html == '<p><span class="img-blocked">image: alt</span></p>\n'

    @pytest.mark.parametrize(
        "source",
        [
            '<hx-partial hx-get="/logout" hx-trigger="load"></hx-partial>',
            '<div hx-get="/x" data-hx-get="/y" id="main" style="x" onclick="x">a</div>',
            '[a](https://x.org "<hx-partial hx-get=/x>")',
            "[a](https://x.org '\"><hx-partial hx-get=/x>')",
            '[a](<https://x.org/" hx-get="/x>)',
            '[a](src/" hx-get="/x)',
            '![a" hx-get="/x](https://x.org "hx-get")',
            '<https://x.org/"hx-get=/x>',
            '```" hx-get="/x\ncode\n```',
            '```python hx-get="/x" {#main .cls}\ncode\n```',
            "<!-- hx-get -->",
            "<script>hx-get</script><style>*{}</style><template>x</template><form action=/x>",
            "&lt;hx-partial hx-get=/x&gt;",
            '| a {hx-get="/x"} |\n|---|\n',
            "# heading {#main hx-get=/x}",
            "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;<hx-partial>'>",
        ],
    )
    def test_the_text_cannot_add_htmx_attributes_or_elements(self, source: str) -> None:
        for html in (render_markdown(source), render_person_text(source)):
            Inspector(html)
            assert "<hx-" not in html
            assert not re.search(r"<[^>]*\shx-", re.sub('"[^"]*"', '""', html))

    def test_no_element_has_an_id(self) -> None:
        assert " id=" not in render_markdown(ANSWER + "\n# A\n\n[^1]\n\n[^1]: note")


class TestCodeBlocks:
    def test_a_code_block_has_a_head_with_buttons(self) -> None:
        assert fill_marks(render_plain_code("```py\nx <y\n```\n")) == (
            '<div class="code" data-lang="python"><div class="code-head">'
            '<span class="code-lang">Python</span>'
            '<button type="button" class="code-wrap" data-action="wrap-code"'
            ' aria-pressed="false">Wrap</button>'
            '<button type="button" data-action="download-code">Download</button>'
            '<button type="button" data-action="copy-code">Copy</button></div>'
            '<pre tabindex="0"><code class="hl">x &lt;y\n</code></pre></div>\n'
        )

    @pytest.mark.parametrize(
        "opening", ["```", "```nonsense", "```{.python}", '```" onx="', "```<b>", "```text", "    "]
    )
    def test_a_language_is_never_guessed(self, opening: str) -> None:
        html = render_markdown(f"{opening}\n    import os\n")
        assert 'data-lang="text"' in html
        assert "import os" in code_of(html)

    @pytest.mark.parametrize(
        ("info", "language"),
        [
            *[("py", "python"), ("Python title=x", "python"), ("c++", "cpp"), ("C#", "csharp")],
            *[("sh", "bash"), ("js", "javascript"), (" yaml,x", "yaml"), ("`", "text")],
        ],
    )
    def test_a_language_is_found_by_its_usual_names(self, info: str, language: str) -> None:
        assert find_language(info) == language

    def test_code_is_coloured_by_classes_only(self) -> None:
        code = code_of(render_markdown("```python\n@a\nclass B:\n    x = 'y'  # 1\n```"))
        assert '<span class="k">class</span> <span class="nc">B</span>:' in code
        assert set(re.findall(r"<span (\w+)=", code)) == {"class"}

    @pytest.mark.parametrize("language", ["python", "diff", "console", "html", "yaml", "php"])
    @pytest.mark.parametrize("code", ["\n\n a\tb \n\n", "\ufeffx", "a\x0cb\u2028c", "é & <i> \xa0"])
    def test_highlighting_keeps_every_character(self, language: str, code: str) -> None:
        colourless = re.sub("</?span[^>]*>", "", code_of(render_markdown(f"```{language}\n{code}")))
        assert colourless == code_of(render_markdown(f"```\n{code}"))

    @pytest.mark.parametrize(
        "code",
        [
            "x = 1\n" * (MAX_CODE_CHARS // 6 + 1),
            "x = 1; " * 200,
            "x = 1" + "\n" * 300,
        ],
        ids=["long", "long line", "blank"],
    )
    def test_code_that_could_take_long_is_not_highlighted(self, code: str) -> None:
        html = render_markdown(f"```python\n{code}\n```")
        assert "<span" not in code_of(html)
        assert 'data-lang="python"' in html

    def test_code_stays_plain_when_its_lexer_fails(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(language: str) -> None:
            raise ValueError

        monkeypatch.setattr(code_blocks, "find_lexer", fail)
        assert code_of(render_markdown("```python\nx = 78\n```")) == "x = 78\n"
        [fields] = [r.fields for r in caplog.records if r.message == "lexer_failed"]  # type: ignore[attr-defined]
        assert fields == {"language": "python"}

    def test_every_language_has_a_lexer(self) -> None:
        names = set(code_blocks.known_languages().values())
        assert len(names) > 400
        assert all(code_blocks.find_lexer(name) for name in ("python", "cpp", "json", "text"))


class TestPersonText:
    @pytest.mark.parametrize(
        "text",
        [
            *["__init__ and *args, **kwargs", "# heading", "<b>", "- a\n- b", "1986. A year"],
            *["two  spaces\n\n  and lines", "> quoted", "| a |\n|---|", "~~x~~", "a\\*b", "&amp;"],
            *[
                "[a](b)",
                "![x](y)",
                "    indented",
                "***",
                "`",
                "``a`",
                "open ` tick\nclosed ` tick",
            ],
        ],
    )
    def test_text_is_shown_as_it_was_typed(self, text: str) -> None:
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert render_person_text(text) == f'<p class="verbatim">{escaped}</p>'

    def test_inline_code_is_rendered(self) -> None:
        html = render_person_text("use `a<b>` or ``x`y``, not `https://x.org`")
        assert html == (
            '<p class="verbatim">use <code>a&lt;b&gt;</code> or <code>x`y</code>,'
            " not <code>https://x.org</code></p>"
        )

    def test_links_are_rendered(self) -> None:
        html = render_person_text('(https://x.org/a?b=1&c="d").')
        link = f'<a href="https://x.org/a?b=1&amp;c=" title="x.org" {LINK}>'
        assert html == f'<p class="verbatim">({link}https://x.org/a?b=1&amp;c=</a>"d").</p>'

    def test_fenced_code_is_rendered(self) -> None:
        html = render_person_text("Look:\n\n```py\n*x*\n\n```\n\nThanks\n```\nopen `x`")
        parts = re.sub(r'<div class="code".*?<code class="hl">', "<code>", html)
        assert parts == (
            '<p class="verbatim">Look:</p><code>*x*\n\n</code></pre></div>\n'
            '<p class="verbatim">Thanks</p><code>open `x`\n</code></pre></div>\n'
        )
        assert 'data-lang="python"' in html

    def test_a_longer_fence_holds_a_shorter_one(self) -> None:
        assert code_of(render_person_text("````\n```\na\n```\n````")) == "```\na\n```\n"

    @pytest.mark.parametrize("text", ["", "\n", " \n\t\n"])
    def test_blank_text_is_rendered_as_an_empty_string(self, text: str) -> None:
        assert render_person_text(text) == ""

    @given(any_text | markdown_like)
    def test_any_string_is_rendered_without_the_fallback(self, text: str) -> None:
        html = markdown.render_verbatim(normalise_source(text))
        assert html == render_person_text(text)
        html.encode()
        Inspector(html)


class TestPlain:
    def test_markup_is_escaped_and_terminal_codes_are_dropped(self) -> None:
        text = '\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(B<a> "&"\x1b]8;;http://x\x1b\\link\x1b[K\r\nb'
        assert render_plain(text) == "red &lt;a&gt; &quot;&amp;&quot;link\nb"

    @given(any_text)
    def test_any_string_can_be_rendered(self, text: str) -> None:
        html = render_plain(text)
        html.encode()
        assert not set("<>\"'\x00\r") & set(html)


class TestCost:
    @pytest.mark.parametrize(
        ("render", "size"), [(render_markdown, 200), (render_person_text, 400), (render_plain, 400)]
    )
    def test_work_grows_linearly_with_the_text(
        self, render: Callable[[str], str], size: int
    ) -> None:
        for piece in HOSTILE:
            small, large = (count_calls(render, (piece * n)[:n]) for n in (size, 3 * size))
            assert large < 4.5 * small + 200, (piece, small, large)

    @pytest.mark.parametrize("text", [">" * 10_000, "[" * 10_000, "![" * 5_000, "- " * 5_000])
    def test_deep_nesting_can_be_rendered(self, text: str) -> None:
        Inspector(render_markdown(text))
        assert render_person_text(text)

    def test_megabytes_of_text_can_be_rendered(self) -> None:
        for text in ("word & " * 30_000, "x" * 1_000_000, "\n" * 100_000, "\xa0&" * 50_000):
            for render in (render_markdown, render_person_text, render_plain):
                render(text).encode()


def code_colours() -> str:
    return APP_CSS.read_text().split("\n.hl {")[1]


class TestColours:
    def test_only_the_token_classes_have_colours_and_all_do(self) -> None:
        classes = re.findall(r"^  \.(\w+) \{ color: light-dark", code_colours(), re.MULTILINE)
        assert sorted(classes) == sorted(TOKEN_CLASSES)

    def test_every_colour_has_enough_contrast_on_every_surface(self) -> None:
        css = code_colours()
        rule = (
            r"color: light-dark\((#\w+), (#\w+)\);(?:.*background: light-dark\((#\w+), (#\w+)\))?"
        )
        for light, dark, light_ground, dark_ground in re.findall(rule, css):
            for ground in [light_ground] if light_ground else ["#fdfdfc", "#f5f5f3", "#ebebe8"]:
                assert contrast(light, ground) >= 4.5
            for ground in [dark_ground] if dark_ground else ["#17171a", "#1d1d21", "#29292e"]:
                assert contrast(dark, ground) >= 4.5


def count_calls(render: Callable[[str], str], text: str) -> int:
    """Return the number of function calls of a rendering, which measures work on any machine."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        render(text)
    finally:
        sys.setprofile(None)
    return calls


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours as in WCAG 2.2, 1.4.3."""
    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
