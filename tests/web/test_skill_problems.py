"""The list of skills with problems in the settings of a workspace."""

from pathlib import Path

from django.test import Client
from django.urls import reverse

from conversations.models import Workspace


def test_settings_list_the_problems_of_a_skill(owner: Client, workspace: Workspace) -> None:
    url = reverse("workspace_tools", args=[workspace.slug])
    assert "Skills with problems" not in owner.get(url).text
    folder = Path(workspace.root, "skills", "a\u202eb")
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\na: &a [x]\nname: *a\n---\nText.")
    page = owner.get(url).text
    assert "Skills with problems" in page
    assert r"skills/a\u202eb/SKILL.md: its front matter is read line by line" in page
    assert "\u202e" not in page
    german = owner.get(url, headers={"Accept-Language": "de"}).text
    assert r"skills/a\u202eb/SKILL.md: das Front Matter wird zeilenweise gelesen" in german
