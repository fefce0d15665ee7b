"""The layout of templates: one element per line, so that diffs show the changed elements."""

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


def test_each_line_is_short_and_has_at_most_one_element() -> None:
    for path in TEMPLATES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{name_of(path)}:{number}: {line.strip()}"
            assert len(line) <= MAX_LINE_CHARS, where
            # <pre> may share its line, because a line break inside it would be shown.
            assert len(ELEMENT.findall(line.replace("<pre", "", 1))) <= 1, where


def test_template_tags_are_formatted_by_djade() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "djade", "--check", *TEMPLATES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
