"""Texts for the tests of the renderers: a usual answer, random text and hostile text."""

from hypothesis import strategies as st

ANSWER = """\
# Reading the settings

The **settings** live in `config/settings.py`; see [the docs](https://docs.example.com/a_b)
and ![a diagram](https://img.example.com/x.png "t").

1. Open the file:
   ```python
   with open("x") as file:
       print(file.read())
   ```
2. Change *one* value
   - nested **item**
   - [x] and a task

| name | value | note |
|:-----|------:|:----:|
| `a`  |     1 | x    |
| b    |    22 | ~~y~~ |

> A quotation
> of two lines

```diff
-old
+new
```

    indented code

Setext heading
---

- loose

- list

***
The end: https://example.com/path?q=1.
"""

_PIECES = [
    *["\n", "\n", "\n", "\n\n", "- ", "* ", "+", "1. ", "2) ", "10. ", "> ", "#", " ## "],
    *["```", "```", "~~~", "````", "```py", "`", "``", "    ", "  ", " ", "\t", "|", "a | b"],
    *["|-|-|", "| - | :-: |", "---", "===", "***", "___", "a", "b c", "word", "**", "*", "_"],
    *["~~", "[", "](", "]", "![", "](http://x.y)", "<", "http://a.b", ">", "\\", "&amp;", "&"],
    *["\r", "\r\n", "é", "\u2028", "\x0b", "\x00", "\ud800", "[ ] ", "[x] ", "\u3000", "1986"],
    *[":", "\xa0", "\ufdd0", "重", "：", "<b>", "<br>", "<br />", "hx-get='/x'", "\x1b[31m"],
    *["$", "$$", "$$\n", "\n$$", "\\(", "\\)", "\n\\[", "\\]", "x^2", "\\frac{a}{b}", "$5", "$x$"],
    *["[^1]", "\n[^1]: ", "[^note]", "> [!NOTE]\n", "[!TIP]"],
]

any_text = st.text(st.characters(exclude_categories=()))
"""Any string at all, surrogates included."""

markdown_like = st.lists(st.sampled_from(_PIECES), max_size=60).map("".join)
"""Strings of pieces that may each mean something in Markdown."""

DEFINITION = "[a]: https://example.com/a\n"

HOSTILE = [
    *[">", "> ", "[", "![", "[a](", "[a](b 'c", '[a](<b "', "*", "*a ", "**a ", "_a", "~~a "],
    *["`", "`a", "``a`", "<", "<a", "<http://a ", "http://a ", "http://", "http://a)", "&", "\\"],
    *["a\n", "- ", "- a\n", "1. a\n", "  - a\n", "|", "|a|b|\n", "|a|b|\n|-|-|\n", "```\n"],
    *["```py\nx\n```\n", "\x1b[", "\x1b]", "\r", "#", "# a\n", "a\n=\n", " ", "\t", "\x00", "]"],
    *[
        "$",
        "$$",
        "$a ",
        "$$a\n",
        "$$\n",
        "\\(",
        "\\[",
        "\\(a",
        "$a$",
        "[^1]",
        "[^1]: a\n",
        "> [!NOTE]\n",
    ],
    *["(", "https://a.b/(", "> a\nb\n", "> > > - - - ", "a\u2028", "- [ ] a\n", "<hx-partial x=y>"],
    *["://", "![a](http://x) ", DEFINITION, "a|b\n", "-|\n", "a  \n", "\xa0", "&amp;", "\ud800"],
]
"""Pieces whose repetition has made some Markdown renderer quadratic or worse."""
