"""The page of the model servers, and the file that configures them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from conversations.models import AuditEntry, LearntModel
from conversations.providers import discovery
from conversations.providers.config import (
    OPENAI,
    ProviderConfig,
    ProvidersError,
    append_provider,
    read_providers,
)
from conversations.runtime import current
from conversations.runtime.service import Runtime
from tests.runtime.conftest import options, start_runtime  # noqa: F401 (fixtures)
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

MODEL = "chat/claude-haiku-4-5"


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(settings.LOOM, "providers_file", tmp_path / "providers.toml")
    monkeypatch.setattr(settings.LOOM, "providers", ())
    return settings.LOOM


@pytest.fixture
async def runtime(
    start_runtime: Callable[..., Any],  # noqa: F811
    wire: WireThread,
    loom: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Runtime:
    loom.providers = (
        replace(wire.provider, name="chat", kind=OPENAI, url=f"{wire.url}/v1", is_plain=False),
    )
    started: Runtime = await start_runtime(providers=loom.providers, model="")
    await started.models.refresh()  # this waits until the SDK is loaded
    monkeypatch.setattr(current, "_runtime", started)
    return started


@pytest.fixture
def browser() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


async def get(browser: Client, name: str, **data: str) -> str:
    address = reverse(name)
    send = browser.post if name != "providers" else browser.get
    response = await sync_to_async(send)(address, data, follow=True)
    assert response.status_code == 200, response.content.decode()[:500]
    return str(response.content.decode())


async def test_page_shows_the_state_of_servers_but_no_key(
    runtime: Runtime, wire: WireThread, browser: Client
) -> None:
    page = await get(browser, "providers")
    assert "Available with 4 models." in page
    assert f"<code>{MODEL}</code>" in page
    assert "1\u202f000\u202f000" in page
    assert "Does not support" not in page  # no model has been tested
    assert wire.key not in page
    wire.server.key = "another"
    page = await get(browser, "providers_refresh", provider="chat")
    assert "The provider refused the API key." in page
    assert wire.key not in page


async def test_model_test_says_in_the_language_of_the_page_what_a_model_takes(
    runtime: Runtime, wire: WireThread, browser: Client
) -> None:
    browser.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    assert "Werkzeuge: ja" in await get(browser, "providers_test", provider="chat", model=MODEL)


async def test_model_test_shows_the_answer_and_stores_the_result(
    runtime: Runtime, wire: WireThread, browser: Client
) -> None:
    wire.enqueue(
        Scenario(text="Hello!"),
        Scenario(text="No time."),
        Scenario(status=400, error_message="image input is not supported"),
    )
    page = await get(browser, "providers_test", provider="chat", model=MODEL)
    assert "answered “Hello!”" in page
    assert "tools: yes" in page
    assert "images: no" in page
    assert "Does not support" in page
    learnt = await LearntModel.objects.aget(model=MODEL)
    assert learnt.takes == {"tools": True, "images": False}
    await get(browser, "providers_refresh", provider="chat")
    assert not await LearntModel.objects.aexists()


async def test_model_test_reports_an_answer_that_is_only_thinking(
    runtime: Runtime, wire: WireThread, browser: Client
) -> None:
    wire.enqueue(Scenario(text="", thinking="They greet me", stop_reason="max_tokens"))
    page = await get(browser, "providers_test", provider="chat", model=MODEL)
    assert f"<b>{MODEL}</b> responds, but used all tokens" in page
    assert "answered “”" not in page


async def test_failed_model_test_shows_the_reason(
    runtime: Runtime, wire: WireThread, browser: Client
) -> None:
    wire.enqueue(Scenario(status=503, error_message="loading the model"))
    page = await get(browser, "providers_test", provider="chat", model=MODEL)
    assert f"{MODEL} did not answer." in page
    assert "loading the model" in page


async def test_discovered_server_can_be_used_at_once(
    runtime: Runtime,
    wire: WireThread,
    browser: Client,
    loom: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = int(wire.url.rpartition(":")[2])
    monkeypatch.setattr(discovery, "PORTS", {port: "LM Studio"})
    monkeypatch.setattr("conversations.web.providers.PORTS", {port: "LM Studio"})
    wire.server.key = ""  # the server needs no key
    monkeypatch.setattr(loom, "providers", ())
    await runtime.models.reload(())
    assert runtime.models.is_demo
    assert "Use LM Studio" in await get(browser, "providers_find")
    page = await get(browser, "providers_add", port=str(port))
    assert "lm-studio is connected." in page
    assert [one.name for one in read_providers((), loom.providers_file, {})] == ["lm-studio"]
    assert not runtime.models.is_demo
    assert await AuditEntry.objects.filter(action="provider").acount() == 1
    # The server is not offered a second time.
    assert "Use LM Studio" not in await get(browser, "providers_find")


@pytest.mark.parametrize("text", [b"[providers.a]\nkind = 'other'\n", b"# \xff"])
async def test_no_server_is_added_to_an_invalid_file(
    runtime: Runtime,
    wire: WireThread,
    browser: Client,
    loom: Any,
    monkeypatch: pytest.MonkeyPatch,
    text: bytes,
) -> None:
    port = int(wire.url.rpartition(":")[2])
    monkeypatch.setattr(discovery, "PORTS", {port: "LM Studio"})
    monkeypatch.setattr("conversations.web.providers.PORTS", {port: "LM Studio"})
    wire.server.key = ""
    loom.providers = ()
    loom.providers_file.write_bytes(text)
    response = await sync_to_async(browser.post)(reverse("providers_add"), {"port": str(port)})
    assert response.status_code == 400
    assert str(loom.providers_file) in response.content.decode()
    assert loom.providers_file.read_bytes() == text
    assert not await AuditEntry.objects.filter(action="provider").aexists()


async def test_search_that_finds_no_server_says_so(
    runtime: Runtime, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.web.providers.PORTS", {9: "Nothing"})
    assert "No other model server responds" in await get(browser, "providers_find")


# The file


GOOD = """
[providers.local]
kind = "openai"
url = "http://127.0.0.1:8080/v1/"

[providers.local.models."qwen/3:8b"]
name = "Qwen"
input_tokens = 32768
images = false
price = { input = 0.5, output = 1.5 }

[providers.cloud]
kind = "openai-responses"
key_env = "CLOUD_KEY"
"""


def test_providers_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "providers.toml"
    path.write_text(GOOD)
    local, cloud = read_providers((), path, {"CLOUD_KEY": "secret"})
    assert (local.url, local.api_key) == ("http://127.0.0.1:8080/v1", "none")
    assert (cloud.url, cloud.api_key) == ("https://api.openai.com/v1", "secret")
    assert "secret" not in repr(cloud)
    [model] = [local.describe(one) for one in local.configured_models()]
    assert (model.id, model.name, model.max_input_tokens) == ("local/qwen/3:8b", "Qwen", 32768)
    assert model.takes == {"images": False}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "is not valid TOML"),
        ("[other]", "tables named [providers.NAME]"),
        ("[providers.A]\nkind = 'openai'", "small letters"),
        ("[providers.a]", "kind must be one of"),
        ("[providers.a]\nkind = 'openai'\nkey = 'sk-1'", "key is not known"),
        ("[providers.a]\nkind = 'openai'\nurl = 'localhost'", "url must be a URL"),
        ("[providers.a]\nkind = 'openai'\nurl = 'http://me:pw@host/v1'", "url must be a URL"),
        ("[providers.a]\nkind = 'openai'\nkey_env = 'NOT_SET'", "NOT_SET is not set"),
        ("[providers.a]\nkind = 'openai'\n[providers.a.models.m]\nimages = 1", "true or false"),
        ("[providers.a]\nkind = 'openai'\n[providers.a.models.m]\ninput_tokens = 0", "tokens"),
        ("[providers.a]\nkind = 'openai'\n[providers.a.models.m]\nprice = 1", "price must be"),
    ],
)
def test_error_in_the_providers_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "providers.toml"
    path.write_text(text)
    with pytest.raises(ProvidersError) as refused:
        read_providers((), path, {})
    assert reason in str(refused.value)
    assert "sk-1" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_provider_name_can_be_used_only_once(tmp_path: Path) -> None:
    path = tmp_path / "providers.toml"
    append_provider(path, name="local", url="http://127.0.0.1:1/v1")
    append_provider(path, name="other", url="http://127.0.0.1:2/v1")
    assert [one.name for one in read_providers((), path, {})] == ["local", "other"]
    with pytest.raises(ProvidersError, match="there is a provider named local"):
        append_provider(path, name="local", url="http://127.0.0.1:3/v1")
    given = ProviderConfig(name="local", kind=OPENAI, url="http://127.0.0.1:4/v1")
    with pytest.raises(ProvidersError, match="has a provider named local"):
        read_providers([given], path, {})
