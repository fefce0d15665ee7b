"""Devices that were signed in before they were known."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection
from django.test import Client

from conversations.archive.devices import list_devices, sign_out_devices
from conversations.models import Device

migration = import_module("conversations.migrations.0015_accounts")


@pytest.mark.django_db
def test_who_is_signed_in_at_the_update_has_a_device_that_can_be_signed_out(user: User) -> None:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    anonymous = Client()
    session = anonymous.session
    session["x"] = 1
    session.save()
    BrowserSession.objects.create(
        session_key="broken", session_data="?", expire_date="2099-01-01T00:00Z"
    )
    Device.objects.all().delete()
    migration.know_devices(apps, SimpleNamespace(connection=connection))
    [device] = list_devices(user.pk, current=client.session.session_key or "")
    assert device.is_current
    assert Device.objects.count() == 1
    assert sign_out_devices(user.pk) == 1
    assert client.get("/account/").status_code == 302
