"""Moments on a page are elements that show the time in the reader's zone and language.

A browser without scripts shows the text in the element instead.
"""

import re
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from conversations.archive.sessions import create_session
from conversations.models import Workspace

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db

ELEMENT = re.compile(r"<time [^>]*?datetime=[\"']([^\"']+)[\"']>[^<]+</time>")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


@pytest.fixture
def reader(make_person: MakePerson) -> Client:
    return browser_of(make_person("superuser"))


def shown(reader: Client, address: str) -> list[datetime]:
    """Return the moments of a page, and assert that it has no other dates."""
    response = reader.get(address, follow=True)
    assert response.status_code == 200
    body = response.text.partition("<main")[2]
    assert not DATE.search(re.sub(r"<[^>]*>", " ", ELEMENT.sub(" ", body)))
    moments = [datetime.fromisoformat(text) for text in ELEMENT.findall(body)]
    assert all(moment.tzinfo is not None for moment in moments)
    return moments


def test_sample_shows_its_period(reader: Client, workspace: Workspace, user: User) -> None:
    say(create_session(workspace, owner=user), "Plant the beans")
    since, until = shown(reader, reverse("review_sample") + "?n=5&days=30")[:2]
    assert until - since == timedelta(days=30)
