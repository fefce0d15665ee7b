from tests.runtime.conftest import garden, options, runtime, start_runtime
from tests.web.conftest import owner

__all__ = ["garden", "options", "owner", "runtime", "start_runtime"]
