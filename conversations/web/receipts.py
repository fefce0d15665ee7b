"""Receipts of purged sessions, for administrators."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from conversations.archive.purge import digest_of_receipt
from conversations.archive.receipts import get_receipt, list_receipts
from conversations.domain.jsontext import load_json
from conversations.domain.text import storable

from .access import require_administrator
from .page_cursors import read_cursor

PAGE = 50


@login_required
@require_safe
def receipts(request: HttpRequest) -> HttpResponse:
    """The latest first; ``q`` is the uuid of a session, a workspace or an owner."""
    require_administrator(request)
    query = storable(request.GET.get("q", "")).strip()[:150]
    before = read_cursor(request)
    found = list_receipts(query=query, before=before, limit=PAGE + 1)
    context = {
        "receipts": found[:PAGE],
        "query": query,
        "older": found[PAGE - 1].pk if len(found) > PAGE else None,
        "is_first": before is None,
    }
    return render(request, "retention/receipts.html", context)


@login_required
@require_safe
def receipt(request: HttpRequest, receipt: UUID) -> HttpResponse:
    """One receipt with everything in it."""
    require_administrator(request)
    found = get_receipt(receipt)
    context = {
        "receipt": found,
        "counts": load_json(found.counts, default={}).items(),
        "is_whole": found.digest == digest_of_receipt(found),
    }
    return render(request, "retention/receipt.html", context)
