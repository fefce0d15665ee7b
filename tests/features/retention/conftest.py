"""Settings and contents of each test's own."""

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
    """Set settings of the product, by their names in ``env``."""

    def change(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setattr(django_settings.LOOM, name, value)

    return change


@pytest.fixture(autouse=True)
def own_data(configure: Configure, tmp_path: Path) -> None:
    """Contents of no other test."""
    folder = tmp_path / "data"
    folder.mkdir()
    configure(data_dir=folder)


def age_contents(moment: datetime) -> None:
    """As if all contents had been in use last at that moment."""
    for folder, _, names in os.walk(blobs_folder()):
        for name in names:
            os.utime(Path(folder, name), (moment.timestamp(),) * 2)
