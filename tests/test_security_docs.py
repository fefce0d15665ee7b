"""The table of docs/security.md names tests that exist, with the number of their cases."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from loomweb.env import BASE_DIR

DOCUMENT = BASE_DIR / "docs/security.md"
WHOLE = BASE_DIR / "tests/features/test_whole.py"
FEATURE = re.compile("tests/features/[a-z]")
ROW = re.compile(r"^\| [^|]+ \| `(tests/[\w/]+\.py::\w+)` \| (\d+) \| [^|]+ \|$", re.M)


def count_cases(tests: list[str]) -> Counter[str]:
    """Return the number of cases that pytest collects for each test function."""
    arguments = ["-q", "--collect-only", "-n", "0", *tests]
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.split("[")[0] for line in collected.stdout.splitlines() if "::" in line]
    assert collected.returncode == 0, collected.stdout[-2_000:] + collected.stderr[-2_000:]
    return Counter(found)


def cases_of(session: pytest.Session, tests: list[str]) -> Counter[str]:
    """Return the number of cases of each test.

    The tests that this run has collected are counted, unless it was limited to some cases. The
    others are collected in another process, which takes as long as importing them.
    """
    found = Counter(item.nodeid.split("[")[0] for item in session.items)
    if any("::" in one for one in session.config.args) or (
        session.config.option.keyword or session.config.option.markexpr
    ):
        return count_cases(tests)
    missing = [test for test in tests if test not in found]
    return found + count_cases(missing) if missing else found


def test_the_table_of_attacks_matches_the_suite(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    named = {test: int(cases) for test, cases in ROW.findall(text)}
    heads = len(re.findall(r"^\| attack \|", text, re.M))
    rows = len(re.findall(r"^\| ", text, re.M)) - 2 * heads
    assert len(named) == rows, "a row has another form, or names a test twice"
    for test in list(named):
        if FEATURE.match(test) and not (BASE_DIR / test.rpartition("/")[0]).is_dir():
            del named[test]  # was removed with its feature
    cases = cases_of(request.session, list(named))
    others = {test: cases[test] for test in named if cases[test] != named[test]}
    if not WHOLE.exists():
        # Some tests have a case for each command or page of the features that are present.
        others = {test: count for test, count in others.items() if not 0 < count < named[test]}
    assert others == {}
