"""Cold storage in a folder; the clock as a value."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from conversations.archive.blobs import blobs_folder
from loomweb.cold_storage import read_cold_storage

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
    configure(data_dir=tmp_path / "data")


@pytest.fixture
def cold_folder(settings: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "cold"
    settings.STORAGES = {**settings.STORAGES, "cold": read_cold_storage(str(folder))}
    return folder


def age_contents(moment: datetime) -> None:
    """As if all contents had been in use last at that moment."""
    for folder, _, names in os.walk(blobs_folder()):
        for name in names:
            os.utime(Path(folder, name), (moment.timestamp(),) * 2)
