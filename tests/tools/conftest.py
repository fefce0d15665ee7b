"""Fixtures of the runtime, so that tools are tested in a real run."""

from tests.runtime.conftest import garden, options, runtime, start_runtime

__all__ = ["garden", "options", "runtime", "start_runtime"]
