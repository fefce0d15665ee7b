from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.features.notices.models import PushSubscription
from tests.runtime.conftest import garden, options, runtime, start_runtime
from tests.web.conftest import owner, runtime_ends

from .making import subscribe_browser
from .push_service import PushService, open_push_service

__all__ = ["garden", "options", "owner", "runtime", "runtime_ends", "start_runtime"]


@pytest.fixture
def push_service() -> Iterator[PushService]:
    with open_push_service() as opened:
        yield opened
        assert opened.problems == []


@pytest.fixture
def subscription(owner: Client, user: User, push_service: PushService) -> PushSubscription:
    return subscribe_browser(owner, user, push_service.make_browser())
