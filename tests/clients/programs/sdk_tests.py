"""A plugin for the SDK's own tests.

The tests use the token of the installation, and leave out the parameters that
``CLIENT_LEAVES_OUT`` names.
"""

import os
import sys
from typing import Any


def pytest_collection_finish() -> None:
    from anthropic._base_client import BaseClient

    sys.modules["tests.conftest"].api_key = os.environ["CLIENT_TOKEN"]  # type: ignore[attr-defined]
    build, left_out = BaseClient._build_request, os.environ["CLIENT_LEAVES_OUT"].split()

    def build_without(self: Any, options: Any, **more: Any) -> Any:
        if isinstance(options.json_data, dict):
            given = options.json_data.items()
            options.json_data = {name: value for name, value in given if name not in left_out}
        return build(self, options, **more)

    BaseClient._build_request = build_without
