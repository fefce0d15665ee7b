"""``load_skill``: the result, and the skill that is stored with the session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from conversations.archive.context import append_loaded_skill, read_loaded_skills
from conversations.models import Session, SessionSkill
from conversations.runtime.service import Runtime
from tests.runtime.conftest import ask
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

ROSES = "---\nname: roses\ndescription: Cut roses.\n---\n# Roses\n\nCut above the third leaf.\n"


def write_skill(root: Path, name: str, text: str) -> Path:
    path = root / "skills" / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def loaded(session: Session) -> list[SessionSkill]:
    return await sync_to_async(read_loaded_skills)(session.pk)


@pytest.fixture
def load(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
) -> Callable[..., Any]:
    """Return a function that lets the model call the tool and returns the result."""

    async def load(arguments: dict[str, Any]) -> dict[str, Any]:
        call = ToolCall(name="load_skill", input=arguments)
        wire.enqueue(Scenario(tools=(call,)), Scenario(text="Done."))
        count = len(wire.requests)
        await ask(runtime, garden, f"message {count}")
        result: dict[str, Any] = wire.requests[-1]["messages"][-1]["content"][0]
        return result

    return load


async def test_skill_is_returned_and_stored(
    load: Callable[..., Any],
    garden: Session,
    tmp_path: Path,
) -> None:
    write_skill(tmp_path, "roses", ROSES)
    result = await load({"name": "Roses "})
    assert "is_error" not in result
    assert result["content"].endswith(
        f"relative to skills/roses/. It stays with this conversation.\n\n{ROSES}"
    )
    [skill] = await loaded(garden)
    assert (skill.name, skill.content, skill.turn_number) == ("roses", ROSES, 2)
    assert skill.path == "skills/roses/SKILL.md"


async def test_loaded_skill_is_returned_again_only_if_it_changed(
    load: Callable[..., Any],
    garden: Session,
    tmp_path: Path,
) -> None:
    path = write_skill(tmp_path, "roses", ROSES)
    await load({"name": "roses"})
    again = await load({"name": "roses"})
    assert again["content"] == "The skill roses is already loaded and has not changed."
    assert [skill.turn_number for skill in await loaded(garden)] == [2]
    path.write_text("Cut them all.")
    assert "Cut them all." in (await load({"name": "roses"}))["content"]
    assert [skill.content for skill in await loaded(garden)] == ["Cut them all."]


@pytest.mark.parametrize("name", ["tulips", "../roses", "/etc/passwd", "", "x" * 5000])
async def test_unknown_name_is_answered_with_the_available_skills(
    load: Callable[..., Any],
    garden: Session,
    tmp_path: Path,
    name: Any,
) -> None:
    write_skill(tmp_path, "roses", ROSES)
    hidden = "---\nname: deploy\ndisable-model-invocation: true\n---\nGo."
    write_skill(tmp_path, "deploy", hidden)
    result = await load({"name": name})
    assert result["is_error"]
    assert result["content"].endswith("There are: roses.")
    assert len(result["content"]) < 300
    assert await loaded(garden) == []


async def test_answer_without_skills_names_their_folders(load: Callable[..., Any]) -> None:
    result = await load({"name": "roses"})
    assert "no .claude/skills/*/SKILL.md" in result["content"]


async def test_link_out_of_the_workspace_is_not_followed(
    load: Callable[..., Any],
    garden: Session,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "SKILL.md").write_text("the key")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/roses").symlink_to(outside)
    assert "the key" not in (await load({"name": "roses"}))["content"]
    assert await loaded(garden) == []


async def test_long_skill_is_cut_with_a_notice(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_skill_bytes", 10)
    write_skill(tmp_path, "roses", "0123456789 and more")
    result = await load({"name": "roses"})
    assert result["content"].endswith(
        "0123456789\n[skills/roses/SKILL.md is cut here: the first 10 of 19 bytes are shown.]"
    )


async def test_skill_can_be_loaded_again_after_a_rewind(
    load: Callable[..., Any],
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    tmp_path: Path,
) -> None:
    write_skill(tmp_path, "roses", ROSES)
    await load({"name": "roses"})
    wire.enqueue(Scenario(text="Without it."))
    await runtime.regenerate(garden, client_id="client-again", turn=1, user_pk=None)
    await runtime.wait_idle(garden.pk)
    assert await loaded(garden) == []
    assert ROSES in (await load({"name": "roses"}))["content"]


@pytest.mark.django_db
def test_newest_load_of_each_skill_counts_in_order_of_loading(session: Session) -> None:
    for turn, (name, content) in enumerate((("a", "1"), ("b", "1"), ("a", "2")), start=1):
        append_loaded_skill(session.pk, name=name, path="p", content=content, turn=turn)
    found = [(skill.name, skill.content) for skill in read_loaded_skills(session.pk)]
    assert found == [("b", "1"), ("a", "2")]
