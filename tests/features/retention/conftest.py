"""Fixtures that give each test its own settings and contents."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from conversations.archive.blobs import blobs_folder
from tests.web.conftest import make_person, owner  # noqa: F401 (fixtures)

type Configure = Callable[..., None]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Return a function that changes settings of the product, by their names in ``env``."""

    def change(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setattr(django_settings.LOOM, name, value)

    return change


@pytest.fixture(autouse=True)
def own_data(configure: Configure, tmp_path: Path) -> None:
    """Use a data folder without contents of other tests."""
    folder = tmp_path / "data"
    folder.mkdir()
    configure(data_dir=folder)


def age_contents(moment: datetime) -> None:
    """Set the last use of all contents to that moment."""
    for folder, _, names in os.walk(blobs_folder()):
        for name in names:
            os.utime(Path(folder, name), (moment.timestamp(),) * 2)
