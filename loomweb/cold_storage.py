"""Where copies of purged sessions go, from one setting: a folder or an S3 bucket."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .env import SettingsError


def read_cold_storage(setting: str) -> dict[str, Any]:
    """The entry for Django's ``STORAGES``. Raises SettingsError."""
    if setting.startswith("s3://"):
        return _bucket(setting.removeprefix("s3://"))
    if "://" in setting:
        raise SettingsError("LOOM_COLD_STORAGE is a folder or s3://bucket/prefix.")
    return _folder(Path(setting).expanduser())


def _folder(path: Path) -> dict[str, Any]:
    if not path.is_absolute():
        raise SettingsError(f"LOOM_COLD_STORAGE holds {path}, which is no absolute path.")
    return {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {
            "location": path,
            "base_url": None,
            "file_permissions_mode": 0o600,
            "directory_permissions_mode": 0o700,
        },
    }


def _bucket(place: str) -> dict[str, Any]:
    """The rest (region, address, credentials) is read by boto3 itself, as by any tool of
    AWS: ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3``, ``AWS_ACCESS_KEY_ID`` and so on."""
    bucket, _, prefix = place.partition("/")
    if not bucket:
        raise SettingsError("LOOM_COLD_STORAGE names no bucket: s3://bucket/prefix.")
    if find_spec("storages") is None or find_spec("boto3") is None:
        raise SettingsError(
            "LOOM_COLD_STORAGE names a bucket, and what speaks S3 is not installed. "
            "Install it with: uv sync --extra s3"
        )
    return {
        "BACKEND": "storages.backends.s3.S3Storage",
        "OPTIONS": {
            "bucket_name": bucket,
            "location": prefix.strip("/"),
            "file_overwrite": False,
            "default_acl": None,
        },
    }
