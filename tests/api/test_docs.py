"""The description of the API, as a file and as a page."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.api.main import api
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


def test_the_description_is_open_to_everybody_and_the_same_each_time() -> None:
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    schema = answer.json()
    assert schema["openapi"].startswith("3.1")
    assert answer.content == Client().get("/api/v1/openapi.json").content
    names = [one["operationId"] for ops in schema["paths"].values() for one in ops.values()]
    assert len(names) == len(set(names)) > 20


def test_every_operation_says_what_it_does() -> None:
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            assert operation["x-scope"]


def test_the_page_shows_every_operation_without_scripts() -> None:
    page = Client().get("/api/v1/docs")
    assert page.status_code == 200
    for path, methods in api.get_openapi_schema()["paths"].items():
        assert path in page.text
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page.text
    assert "data-try" not in page.text
    assert "style=" not in page.text
    assert "script-src" in page["Content-Security-Policy"]


def test_who_is_signed_in_can_try_what_only_reads(user: User) -> None:
    page = browser_of(user).get("/api/v1/docs").text
    assert 'data-try="/api/v1/sessions/{uuid}/turns"' in page
    assert "js/try.js" in page
