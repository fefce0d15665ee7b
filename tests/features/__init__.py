"""Tests of the features, one folder for each feature.

A folder is deleted together with its feature. Its module ``matrix`` extends the tables of the
core's tests and may define any of these names:

``PAGES``, ``OPERATIONS``
    rows of the matrices of pages and of the API (``tests.web.rows``, ``tests.api.rows``)
``make_page_values(session, monkeypatch)``, ``make_operation_values(session)``
    create the objects that the rows are about, and return the values for their addresses by name
``stock(session, run)``
    creates at least one row in every table of the feature
``COMMANDS``
    command lines ("{}" is a folder with a file ``all.jsonl`` of one session), with their exit code
    in a fresh data folder and words of their output
``BROWSER_PAGES``, ``BROWSER_STOCK``
    addresses of pages that are opened in a browser, by name; and a script for ``manage.py shell``
    that creates their content and prints ``name=value`` for each value in the addresses
``SAYS_NOTHING``
    the feature's tables about sessions that hold none of their content
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


@cache
def _matrices() -> tuple[ModuleType, ...]:
    paths = sorted(Path(__file__).parent.glob("*/matrix.py"))
    return tuple(import_module(f"{__name__}.{path.parent.name}.matrix") for path in paths)


def collect(name: str) -> list[Any]:
    """Return the values that the features' ``matrix`` modules have for this name."""
    return [getattr(module, name) for module in _matrices() if hasattr(module, name)]


def merge(name: str) -> dict[Any, Any]:
    return {key: row for rows in collect(name) for key, row in rows.items()}
