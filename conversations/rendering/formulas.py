r"""TeX formulas as MathML, which browsers lay out and screen readers read without scripts.

The converter (math-core) knows a fixed set of commands, and none of them makes a link, a style or
an arbitrary element. A formula with any other command is shown as it was written. The converter
recurses and expands macros, so its input is bounded first: the length of the formula, its nesting
depth and the number of macro expansions. See docs/adr/0030.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from math_core import LatexError, LatexToMathML

from conversations.domain.messages import say

from .messages import mark
from .source_text import escape_attribute, escape_text

FORMULA = mark(say("Formula"))  # The accessible name of a formula that stands alone.
MAX_TEX_CHARS = 2_000
MAX_DEPTH = 40  # Nesting depth of groups, environments and fences, each counted separately.
MAX_OPTIONS = 20  # Square brackets after a command, which nest as well.
MAX_EXPANSIONS = 50
STEPS_OF_FORMULA, CHARS_OF_TEX_IN_A_STEP = 15, 4

_CONVERTER = LatexToMathML(fancy_error=False, max_expansions=MAX_EXPANSIONS)


class Formula(NamedTuple):
    """TeX between delimiters; ``end`` is the offset after the closing delimiter."""

    tex: str
    opening: str
    closing: str
    end: int

    @property
    def source(self) -> str:
        return f"{self.opening}{self.tex}{self.closing}"


# A formula has at most MAX_TEX_CHARS characters and no code in it, and its closing delimiter is of
# the same kind as its opening one. ``\\[2pt]``, a line break in TeX, is no delimiter.
_FORMULA = re.compile(
    rf"""
    (\$\$) ((?:[^$\\`]|\\.|\$(?!\$)){{1,{MAX_TEX_CHARS}}}?) (\$\$)
    |(\$) (?![\s$]) ((?:[^$\\`]|\\.){{1,{MAX_TEX_CHARS}}}?) (?<!\s) (\$) (?![\dA-Z])
    |(\\\() ((?:[^\\`]|\\[^()`]){{1,{MAX_TEX_CHARS}}}?) (\\\))
    |(\\\[) ((?:[^\\`]|\\[^][`]){{1,{MAX_TEX_CHARS}}}?) (\\\])
    """,
    re.DOTALL | re.VERBOSE,
)
CLOSING = {"$$": "$$", "\\[": "\\]"}
"""The delimiters of formulas on lines of their own."""

# "$5 for the plan and 10$", "$HOME/$user": money and names, not formulas.
_MONEY = re.compile(r"[\d.,]+(?:\s*[-/]\s*|\s+)[^\W\d_]{2,}|[A-Za-z_]{2,}\W?\Z")


def find_formula(text: str, start: int, end: int | None = None) -> Formula | None:
    """Return the formula whose opening delimiter is at ``start``, or None.

    A ``$`` does not open a formula after a letter, digit or underscore or before a space. It does
    not close one after a space or before a digit or an ASCII capital letter."""
    match = _FORMULA.match(text, start, len(text) if end is None else end)
    if match is None:
        return None
    opening, tex, closing = (part for part in match.groups() if part is not None)
    formula = Formula(tex, opening, closing, match.end())
    if opening == "$" and start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        return None
    is_money = opening == "$" and _MONEY.match(tex)
    if is_money and (tex[0].isdigit() or text[formula.end : formula.end + 1].isalpha()):
        return None
    return formula if tex.strip() else None


def render_formula(formula: Formula, *, block: bool) -> str:
    """Return the formula as MathML, or as it was written; a ``block`` stands alone."""
    display = formula.opening in CLOSING
    mathml = _convert(formula.tex.strip(), display=display) if formula.closing else None
    if mathml is None:
        code = f'<code class="tex">{escape_text(formula.source)}</code>'
        return f'<p class="tex">{code}</p>\n' if block else code
    if not block:
        return mathml
    group = f'tabindex="0" role="group" aria-label="{FORMULA}"'
    return f'<div class="math" {group}>{mathml}</div>\n'


@lru_cache(maxsize=512)
def _convert(tex: str, *, display: bool) -> str | None:
    if not is_bounded(tex):
        return None
    try:
        mathml = _CONVERTER.convert_with_local_state(_simplify(tex), displaystyle=display)
    except LatexError:
        return None
    alternative = escape_attribute(" ".join(tex.split()))
    return _restyle(mathml).replace("<math", f'<math class="rich" alttext="{alternative}"', 1)


_BOUND = re.compile(r"\\(begin|end|left|right)(?![A-Za-z])|\\[A-Za-z]+\*?\s*(\[)|\\.|([{}])", re.S)
_COMMANDS_IN_A_ROW = re.compile(rf"(?:\\[A-Za-z]+\s*+){{{MAX_DEPTH},}}")
_DEEPER = {"begin": ("begin", 1), "end": ("begin", -1), "left": ("left", 1), "right": ("left", -1)}
_DEEPER |= {"{": ("{", 1), "}": ("{", -1)}


def is_bounded(tex: str) -> bool:
    """Return whether the converter can take the formula without overflowing its stack.

    It overflows if groups or environments nest thousands deep."""
    depths = {"begin": 0, "left": 0, "{": 0}
    options = 0
    if len(tex) > MAX_TEX_CHARS or _COMMANDS_IN_A_ROW.search(tex):
        return False
    for match in _BOUND.finditer(tex):
        command, bracket, brace = match.groups()
        options += bracket is not None
        name = command or brace
        if name:
            kind, step = _DEEPER[name]
            depths[kind] += step
        if options > MAX_OPTIONS or max(depths.values()) > MAX_DEPTH:
            return False
    return True


# Other common names for commands that the converter knows. Equation numbers are left out, because
# each formula would begin again with (1).
_SAME = {
    "mbox": "\\text",
    "hbox": "\\text",
    "pmb": "\\boldsymbol",
    "ensuremath": "",
    "dotsb": "\\cdots",
    "dotsm": "\\cdots",
    "dotsi": "\\cdots",
    "dotsc": "\\ldots",
    "dotso": "\\ldots",
    "nonumber": "",
    "notag": "",
    "tiny": "",
    "small": "",
    "normalsize": "",
    "large": "",
    "Large": "",
}
_SAME_COMMAND = re.compile(rf"(?<!\\)((?:\\\\)*)\\({'|'.join(_SAME)})(?![A-Za-z])")
_SAME_ENVIRONMENT = {
    "split": "aligned",
    "smallmatrix": "matrix",
    "eqnarray": "align*",
    "eqnarray*": "align*",
    "flalign": "align*",
    "flalign*": "align*",
    "align": "align*",
    "gather": "gather*",
    "equation": "equation*",
    "multline": "multline*",
}
_ENVIRONMENT = re.compile(r"\\(begin|end)\{(\w+\*?)\}")
_BRACES = r"\{((?:[^{}]|\{[^{}]*\})*+)\}"
_SUBSTACK = re.compile(rf"\\substack\s*+{_BRACES}")
_LABEL = re.compile(rf"\\label\s*+{_BRACES}")
_TEXT = re.compile(r"\\text\{[^{}]*+\}")
_IN_TEXT = re.compile(r"\$([^$]*+)\$")


def _simplify(tex: str) -> str:
    """Replace commands and environments by the ones that the converter knows."""
    tex = _ENVIRONMENT.sub(
        lambda match: f"\\{match[1]}{{{_SAME_ENVIRONMENT.get(match[2], match[2])}}}", tex
    )
    tex = _SAME_COMMAND.sub(lambda match: f"{match[1]}{_SAME[match[2]]} ", tex)
    tex = _SUBSTACK.sub(r"\\begin{subarray}{c}\1\\end{subarray}", _LABEL.sub("", tex))
    tex = _TEXT.sub(lambda match: _IN_TEXT.sub(r"}\1\\text{", match[0]), tex)
    if "\\tag" in tex and not re.search(r"\\begin\{(?:align|gather|equation|multline)\*", tex):
        return f"\\begin{{equation*}}{tex}\\end{{equation*}}"
    return tex


# The converter writes style attributes, which the content security policy forbids.
_STYLE = re.compile(r' style="([^"]*)"( class="[^"]*")?')
_COLOUR = re.compile(r"color:(#[0-9A-F]{6});")
STYLE_CLASSES = {
    "text-align: left": "m-left",
    "text-align: right": "m-right",
    "padding-left: 0": "m-pl0",
    "padding-left:0": "m-pl0",
    "padding-right: 0": "m-pr0",
    "padding-right:0": "m-pr0",
    "border-left: 0.05em solid currentcolor": "m-bl",
    "border-right: 0.05em solid currentcolor": "m-br",
    "border-top: 0.05em solid currentcolor": "m-bt",
    "border-top: 0.05em dashed currentcolor": "m-bd",
    "width: 100%": "m-wide",
    "width: 50%": "m-half",
}
_FONT = re.compile(r"</?span\b[^>]*>")
_PLAIN_TAGS = {"<b>": "<strong>", "</b>": "</strong>", "<i>": "<em>", "</i>": "</em>"}


def _restyle(mathml: str) -> str:
    """Replace style attributes by classes, and remove font elements."""
    mathml = _STYLE.sub(_classes_of, _FONT.sub("", mathml))
    for tag, plain in _PLAIN_TAGS.items():
        mathml = mathml.replace(tag, plain)
    return mathml


def _classes_of(style: re.Match[str]) -> str:
    colour = _COLOUR.fullmatch(style[1])
    if colour:
        return f' mathcolor="{colour[1]}"'
    declared = (part.strip() for part in style[1].split(";"))
    classes = [STYLE_CLASSES[part] for part in declared if part in STYLE_CLASSES]
    return f' class="{" ".join(classes)}"' if classes else ""
