from tests.runtime.conftest import (  # noqa: F401 (fixtures)
    garden,
    open_page,
    options,
    runtime,
    start_runtime,
)
from tests.web.conftest import make_person, owner  # noqa: F401
