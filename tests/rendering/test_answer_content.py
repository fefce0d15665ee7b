"""Formulas, diagrams, footnotes and notices in streamed and in hostile answers."""

import random
import re

import pytest

from conversations.rendering.formulas import find_formula, is_bounded
from conversations.rendering.markdown import render_markdown
from conversations.rendering.sanitiser import sanitise
from conversations.rendering.streaming import BlockStream

from .hostile_content import HOSTILE_DIAGRAMS, HOSTILE_FORMULAS
from .test_markdown import Inspector
from .test_streaming import ended

FORMULAS = [
    r"$x^2$",
    r"$\frac{a+b}{\sqrt{c}}$",
    r"\(\alpha \le \beta_{i,j}\)",
    r"$\sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}$",
    r"$\text{if $n$ is even}$",
    r"$\vec{v} \cdot \hat{w} \neq 0$",
]
BLOCKS = [
    "$$\n\\int_0^1 x\\,dx = \\tfrac12\n$$",
    "\\[\n\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}\n\\]",
    "$$\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}$$",
    "```mermaid\nsequenceDiagram\n  A->>B: $5\n```",
    '```python title="a/b.py"\nprice = "$5"  # \\(x\\)\n```',
    "> [!NOTE]\n> With $x$ and **words**.",
    "| a | b |\n|---|---|\n| $y_1$ | $5 |",
    "- one $z$\n- two\n\n  $$q$$",
]
WORDS = [
    "It costs $5 and $10.",
    "Set $HOME/$USER.",
    "The `$x$` is code.",
    "So[^1] it is.",
    "*so*",
]


def make_answer(number: int) -> str:
    chance = random.Random(number)
    paragraphs = []
    for _ in range(chance.randint(2, 4)):
        inline = [*chance.sample(WORDS, 2), *chance.sample(FORMULAS, 2)]
        chance.shuffle(inline)
        paragraphs += [" ".join(inline), chance.choice(BLOCKS)]
    return "\n\n".join([*paragraphs, "[^1]: As $N_0$ says.\n"])


def test_streamed_answers_equal_stored_ones() -> None:
    """Sixty answers are streamed a character at a time.

    In each state that is checked, the open block has whole elements. At the end, the blocks are
    those of the stored answer.
    """
    for number in range(60):
        text = make_answer(number)
        blocks = BlockStream()
        for place, character in enumerate(text):
            blocks.feed(character)
            # Only every third state is read, because reading all would take too long. The
            # states differ between answers.
            if place % 3 != number % 3:
                continue
            html = blocks.open_html()
            if place % 12 == number % 12:
                Inspector(html)
                assert html.count("<math") == html.count("</math>")
                assert not re.search(r"<[^>]*\Z|&#?\w*\Z", html)
        stored = render_markdown(text)
        assert ended(blocks) == stored
        assert sanitise(stored) == stored
        assert "<math" in stored


@pytest.mark.parametrize("text", [*HOSTILE_FORMULAS, *HOSTILE_DIAGRAMS])
def test_hostile_text_stays_within_the_allow_list(text: str) -> None:
    source = text if text in HOSTILE_FORMULAS else f"```mermaid\n{text}\n```\n"
    html = render_markdown(source)
    Inspector(html)
    assert sanitise(html) == html


@pytest.mark.parametrize(
    "text",
    ["$5 and $10", "costs $3.50, or $4", "$HOME/$USER", "a$b$c", "`$x$`", "\\$x\\$", "$ x $", "$$"],
)
def test_money_variables_and_code_are_no_formulas(text: str) -> None:
    assert "<math" not in render_markdown(text)


def test_formulas_that_are_too_deep_or_long_are_not_converted() -> None:
    assert is_bounded(r"\frac{a}{b}")
    assert not is_bounded("{" * 100 + "}" * 100)
    assert not is_bounded("x" * 5_000)
    found = find_formula("$a$ b", 0)
    assert found is not None
    assert (found.tex, found.end) == ("a", 3)
