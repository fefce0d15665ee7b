"""The model servers of the installation, for administrators.

The page shows the configured providers, whether they respond, and servers found on this machine.
"""

from collections.abc import Coroutine
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext, gettext_lazy, pgettext

from conversations.access import access_context_of
from conversations.accounts.people_pages import administrator_form, administrator_page
from conversations.archive.audit import AuditEvent, record
from conversations.domain.audit import PROVIDER
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.stream import (
    DOCUMENTS,
    IMAGES,
    PARALLEL_TOOLS,
    TOOLS,
    ModelInfo,
)
from conversations.domain.text import number_text
from conversations.providers.config import ProvidersError, append_provider
from conversations.providers.discovery import PORTS, FoundServer, find_local_servers
from conversations.runtime.current import (
    find_default_model,
    require_runtime,
    run_on_runtime,
    started_runtime,
)
from conversations.runtime.model_routing import ModelRouter, ProviderState
from conversations.runtime.probing import probe_model

MAX_MODELS_SHOWN = 50
MAX_WAIT_SECONDS = 90.0  # Time limit for requests to servers

ABILITIES = {
    TOOLS: gettext_lazy("tools"),
    PARALLEL_TOOLS: gettext_lazy("parallel tools"),
    IMAGES: gettext_lazy("images"),
    DOCUMENTS: gettext_lazy("documents"),
    "thinking": gettext_lazy("thinking"),
}


@administrator_page
def providers(request: HttpRequest) -> HttpResponse:
    """Show all providers with their models."""
    return _render(request)


@administrator_form
def providers_refresh(request: HttpRequest) -> HttpResponse:
    """Ask a provider for its models again, and delete what was learnt of them."""
    models, state = _find(request)
    _wait(models.forget_learnt(state.config.name))
    message = gettext("The models of %(provider)s were checked again.") % {
        "provider": state.config.name
    }
    messages.success(request, message)
    return redirect("providers")


@administrator_form
def providers_test(request: HttpRequest) -> HttpResponse:
    """Probe a model of a provider."""
    models, state = _find(request)
    model = request.POST.get("model", "")
    if model not in {info.id for info in state.models}:
        raise NotFound("This provider does not offer that model.")
    report = _wait(probe_model(models, model))
    takes = [(ABILITIES[name], taken) for name, taken in report.takes.items()]
    return _render(request, report=report, takes=takes, tested=state.config.name)


@administrator_form
def providers_find(request: HttpRequest) -> HttpResponse:
    """Look for model servers on this machine."""
    return _render(request, found=_find_servers())


@administrator_form
def providers_add(request: HttpRequest) -> HttpResponse:
    """Add a server that was found to the providers, from now on."""
    port = request.POST.get("port", "")
    server = next((server for server in _find_servers() if str(server.port) == port), None)
    if server is None:
        raise Rejected("No model server responds on that port anymore.", code="no_server")
    loom = settings.LOOM
    try:
        loom.read_providers()  # An addition to an invalid file would not be used.
        taken_names = {server.name for server in loom.providers}
        name = server.name if server.name not in taken_names else f"{server.name}-{server.port}"
        append_provider(loom.providers_file, name=name, url=server.url)
    except ProvidersError as error:
        raise Rejected(str(error), code="bad_providers") from error
    record(access_context_of(request).origin, AuditEvent(action=PROVIDER, metadata={"added": name}))
    runtime = started_runtime()
    if runtime is not None:
        _wait(runtime.models.follow_file())
    message = gettext("%(provider)s is connected. You can now choose its models.")
    messages.success(request, message % {"provider": name})
    return redirect("providers")


def _find_servers() -> list[FoundServer]:
    """Return the servers found here that are not configured yet, except this server itself."""
    loom = settings.LOOM
    urls = {server.url for server in loom.providers}
    ports = [port for port in PORTS if port != loom.port]
    return [server for server in _wait(find_local_servers(ports)) if server.url not in urls]


def _find(request: HttpRequest) -> tuple[ModelRouter, ProviderState]:
    runtime = require_runtime()
    name = request.POST.get("provider", "")
    if name not in runtime.models.states:
        raise NotFound("This provider does not exist.")
    return runtime.models, runtime.models.states[name]


def _wait[T](work: Coroutine[Any, Any, T]) -> T:
    return run_on_runtime(work, seconds=MAX_WAIT_SECONDS)


def _render(request: HttpRequest, **extra: Any) -> HttpResponse:
    loom, runtime = settings.LOOM, started_runtime()
    models = runtime.models if runtime is not None else None
    cards = [
        {
            "config": config,
            "key": gettext("in %(variable)s") % {"variable": config.key_env}
            if config.key_env
            else pgettext("key", "none"),
            "state": models.states.get(config.name) if models else None,
            "rows": _list_models(models, config.name),
        }
        for config in loom.providers
    ]
    context = {
        "cards": cards,
        "file": loom.providers_file,
        "default_model": find_default_model(),
    }
    return render(request, "providers.html", context | extra)


def _list_models(models: ModelRouter | None, name: str) -> dict[str, Any]:
    offered: list[ModelInfo] = []
    rows: list[dict[str, Any]] = []
    if models and name in models.states:
        offered = models.states[name].models
        rows = [_describe(models.find(info.id)) for info in offered[:MAX_MODELS_SHOWN]]
    return {
        "all": offered,
        "shown": rows,
        "more": max(0, len(offered) - MAX_MODELS_SHOWN),
        "lacking": any(row["lacks"] for row in rows),
    }


def _describe(model: ModelInfo) -> dict[str, Any]:
    return {
        "model": model,
        "window": number_text(model.max_input_tokens),
        "answer": number_text(model.max_output_tokens),
        "takes": [word for name, word in ABILITIES.items() if model.takes.get(name)],
        "lacks": [word for name, word in ABILITIES.items() if model.takes.get(name) is False],
    }
