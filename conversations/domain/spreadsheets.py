"""Cells of a file that somebody opens in a spreadsheet."""

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With these a spreadsheet begins a formula, and runs it."""


def safe_cell(value: Any) -> Any:
    """The value; a text that would be taken for a formula is marked as text."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS)
    return f"'{value}" if is_formula else value


def csv_line(cells: Iterable[Any]) -> str:
    """One line of a CSV file, its end included."""
    line = io.StringIO()
    csv.writer(line).writerow([safe_cell(cell) for cell in cells])
    return line.getvalue()
