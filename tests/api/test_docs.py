"""The description of the API, as a file and as a page."""

import json
import re
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from conversations.api.fields import KEY_HEADER
from conversations.api.main import api
from loomweb.env import BASE_DIR
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


def test_the_description_is_public_and_deterministic() -> None:
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    schema = answer.json()
    assert schema["openapi"].startswith("3.1")
    assert answer.content == Client().get("/api/v1/openapi.json").content
    names = [one["operationId"] for ops in schema["paths"].values() for one in ops.values()]
    assert len(names) == len(set(names)) > 20
    schemes = schema["components"]["securitySchemes"].values()
    cookies = [one["name"] for one in schemes if one.get("in") == "cookie"]
    assert cookies == [settings.SESSION_COOKIE_NAME]


def test_the_description_has_no_duplicate_keys() -> None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names)
        return dict(pairs)

    json.loads(Client().get("/api/v1/openapi.json").content, object_pairs_hook=once)


def test_every_operation_has_a_description_and_a_scope() -> None:
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            assert operation["x-scope"]


def test_every_creating_post_accepts_an_idempotency_key() -> None:
    for path, methods in api.get_openapi_schema()["paths"].items():
        operation = methods.get("post", {"responses": {}})
        if {"201", 201} & operation["responses"].keys():
            assert KEY_HEADER in [one["name"] for one in operation["parameters"]], path


def test_the_description_suits_code_generators() -> None:
    schema = Client().get("/api/v1/openapi.json").json()
    assert schema["servers"] == [{"url": "/", "description": "This installation."}]
    assert "Response" not in schema["components"]["schemas"], "clients have one of their own"
    names = [tag["name"] for tag in schema["tags"]]
    assert len(set(names)) == len(names)
    contents = schema["components"]["responses"]
    for methods in schema["paths"].values():
        for operation in methods.values():
            assert set(operation["tags"]) <= set(names)
            for status, response in operation["responses"].items():
                if int(status) >= 400:  # a reference, because errors are declared once
                    response = contents[response["$ref"].rpartition("/")[2]]
                    assert response["content"]
                assert response["description"] != "Unknown Status Code"
                for kind, content in response.get("content", {}).items():
                    assert "*" not in kind, "no generator reads that"
                    assert "schema" in content


def settings_of(page: HttpResponse) -> dict[str, Any]:
    found = re.search(r'id="swagger-settings">(.*?)</script>', page.text, re.S)
    assert found is not None
    settings: dict[str, Any] = json.loads(found[1])
    return settings


def test_the_page_loads_everything_from_this_server() -> None:
    page = Client().get("/api/v1/docs")
    assert page.status_code == 200
    assert settings_of(page)["url"] == "/api/v1/openapi.json"
    assert settings_of(page)["validatorUrl"] is None
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert [one for one in loaded if "swagger-ui" in one]
    assert not [one for one in loaded if "//" in one]
    assert "style=" not in page.text
    assert "script-src 'self'" in page["Content-Security-Policy"]


def test_signed_in_people_can_try_get_operations_only(user: User) -> None:
    assert settings_of(Client().get("/api/v1/docs"))["supportedSubmitMethods"] == []
    assert settings_of(browser_of(user).get("/api/v1/docs"))["supportedSubmitMethods"] == ["get"]


def test_every_path_is_named_in_the_documents() -> None:
    """The documents name a path without ``/api/v1``, with ``<name>`` for a parameter."""
    documents = " ".join(path.read_text() for path in (BASE_DIR / "docs").glob("*.md"))
    named = re.sub(r"<[\w-]+>", "{}", documents)
    missing = [
        path
        for path in api.get_openapi_schema()["paths"]
        if re.sub(r"{\w+}", "{}", path.removeprefix("/api/v1/")) not in named
    ]
    assert missing == []
