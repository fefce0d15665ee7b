"""How templates are written: one element a line, so that a change of one shows as one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = sorted(
    path
    for folder in ("templates", "conversations")
    for path in (ROOT / folder).rglob("*.html")
    if "templates" in path.parts
)
MAX_LINE_CHARS = 120
BLOCKS = (
    "article|aside|dd|details|div|dl|dt|fieldset|figure|footer|form|h1|h2|h3|h4|header|li|link|main"
    "|nav|ol|option|p|pre|script|section|select|summary|table|tbody|td|th|thead|tr|ul"
)
ELEMENT = re.compile(rf"<(?:{BLOCKS})\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_line_has_one_element_and_is_short() -> None:
    for path in TEMPLATES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{name_of(path)}:{number}: {line.strip()}"
            assert len(line) <= MAX_LINE_CHARS, where
            # Text that a browser shows as it stands has no line breaks of its own.
            assert len(ELEMENT.findall(line.replace("<pre", "", 1))) <= 1, where


def test_their_tags_are_written_as_djade_writes_them() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "djade", "--check", *TEMPLATES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
