"""Requests for a part of a page, or with a form, from a person who is signed out."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from conversations.models import Session, Workspace


def ask(client: Client, path: str, page: str) -> Any:
    headers = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{page}"}
    return client.get(path, headers=headers)


@pytest.mark.django_db
def test_part_of_a_page_redirects_the_whole_page_to_sign_in() -> None:
    response = ask(Client(), "/search/?q=bean", "/search/")
    assert (response.status_code, response.content) == (204, b"")
    assert response["HX-Redirect"] == "/sign-in/?next=%2Fsearch%2F"


@pytest.mark.django_db
def test_malformed_address_of_the_page_is_ignored() -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://[bad/"}
    response = Client().get("/search/", headers=headers)
    assert response["HX-Redirect"] == "/sign-in/?next=%2F"


@pytest.mark.django_db
def test_chat_is_not_redirected_so_that_its_unsent_text_stays(session: Session) -> None:
    page = f"/s/{session.uuid}/"
    sent = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{page}"}
    for response in (
        ask(Client(), f"{page}?before=seq:9", page),
        Client().post(f"{page}state/edit/", {"text": "Only tabs"}, headers=sent),
    ):
        assert response.status_code == 401
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response.text.startswith("You are signed out.")
        assert "HX-Redirect" not in response


@pytest.mark.django_db
def test_whole_page_is_redirected_to_sign_in() -> None:
    response = Client().get("/search/")
    assert response.status_code == 302
    assert response["Location"].startswith("/sign-in/")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["workspace_settings", "session_create"])
def test_sign_in_page_after_a_form_says_that_nothing_was_saved(
    workspace: Workspace, name: str
) -> None:
    page = reverse(name, args=[workspace.slug])
    said = "Nothing was saved because you are signed out."
    assert said in Client().post(page, {"name": "Bed"}, follow=True).text
    assert said not in Client().get(page, follow=True).text
