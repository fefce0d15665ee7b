"""Tests of features, a folder each; it goes with the feature's own.

The tables of the core's tests take in what a feature adds: its module ``matrix``, which may
have any of these:

``PAGES``, ``OPERATIONS``
    rows of the matrices of pages and of the API (``tests.web.rows``, ``tests.api.rows``)
``make_page_values(session, monkeypatch)``, ``make_operation_values(session)``
    make what those are about; return what stands in their addresses, by its name there
``stock(session, run)``
    makes at least one row in every table of the feature
``COMMANDS``
    command lines ("{}" is a folder with a file ``all.jsonl`` of one session), with what they
    end with in a fresh data folder: the code, and words that they say
``BROWSER_PAGES``, ``BROWSER_STOCK``
    addresses of pages that are looked at in a browser, by a name; and a script for
    ``manage.py shell`` that makes what they show, and prints ``name=value`` for what stands
    in the addresses
``SAYS_NOTHING``
    its tables about sessions that hold nothing of what was said in them
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
    """What the features' matrices have of this name."""
    return [getattr(module, name) for module in _matrices() if hasattr(module, name)]


def merge(name: str) -> dict[Any, Any]:
    return {key: row for rows in collect(name) for key, row in rows.items()}
