"""Cells of a file that somebody opens in a spreadsheet."""

from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With these a spreadsheet begins a formula, and runs it."""


def safe_cell(value: Any) -> Any:
    """The value; a text that would be taken for a formula is marked as text."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS)
    return f"'{value}" if is_formula else value
