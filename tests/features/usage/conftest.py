from tests.runtime.conftest import garden, options, runtime, start_runtime  # noqa: F401 (fixtures)
from tests.web.conftest import make_person, owner  # noqa: F401
