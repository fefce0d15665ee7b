"""Hostile texts and files in Firefox, run by ``make test-firefox``."""

from pathlib import Path
from uuid import uuid4

from tests.e2e.conftest import Server, Visitors
from tests.e2e.hostile import (
    OPEN_ALL,
    outcome_of,
    write_hostile_files,
)
from tests.e2e.test_answer_content import DRAW_ALL, FLOWCHART, answer_lines
from tests.rendering.hostile_content import HOSTILE_DIAGRAMS, HOSTILE_FORMULAS
from tests.rendering.hostile_files import MARKUP

from .bidi import Firefox


async def test_hostile_files_send_no_requests(
    server: Server,
    evil: Visitors,
    tmp_path: Path,
) -> None:
    paths = write_hostile_files(server, evil)
    async with Firefox(tmp_path) as firefox:
        await firefox.open(server.sign_in_link())
        await firefox.open(f"{server.url}/w/example/files/?path=greet.py")
        assert await firefox.call(OPEN_ALL, paths) == outcome_of(paths)
        assert evil.count == 0
        # The counter works, because the same markup in an unprotected page increases it.
        await firefox.open("about:blank")
        markup = "".join(MARKUP[5:20]).replace("EVIL", evil.url)
        await firefox.call(UNPROTECTED, markup)
        assert evil.count > 0


UNPROTECTED = """
async (html) => {
  document.body.innerHTML = html;
  await new Promise((done) => setTimeout(done, 1000));
}
"""


async def test_hostile_texts_run_no_scripts_and_load_nothing(
    server: Server,
    evil: Visitors,
    tmp_path: Path,
) -> None:
    """The texts are formulas and diagrams. Their addresses lead to the counter."""
    place = evil.url.removeprefix("http://")
    formulas = [text.replace("evil.org", place) for text in HOSTILE_FORMULAS]
    diagrams = [text.replace("evil.org", place) for text in HOSTILE_DIAGRAMS]
    uuid = str(uuid4())
    fences = [f"```mermaid\n{text}\n```\n" for text in diagrams[:3]]
    server.import_lines(answer_lines(uuid, FLOWCHART, *formulas, *fences))
    async with Firefox(tmp_path) as firefox:
        await firefox.open(server.sign_in_link())
        await firefox.open(f"{server.url}/s/{uuid}/")
        assert await firefox.call(DRAW_FIRST)
        found = await firefox.call(DRAW_ALL, diagrams)
        assert found["alerts"] == 0
        assert found["late"] == []
        assert (
            await firefox.call(
                "() => window.pwned ?? document.querySelectorAll('#rows script').length"
            )
            == 0
        )
        assert evil.count == 0


DRAW_FIRST = """
async () => {
  document.querySelector("[data-lang=mermaid]").scrollIntoView();
  for (let tries = 0; tries < 100; tries += 1) {
    if (document.querySelector(".code.drawn iframe")) return true;
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
}
"""
