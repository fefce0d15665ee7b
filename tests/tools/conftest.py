"""A tool is tried in a real run: the runtime's fixtures."""

from tests.runtime.conftest import garden, options, runtime, start_runtime

__all__ = ["garden", "options", "runtime", "start_runtime"]
