from tests.tools.conftest import garden, options, runtime, start_runtime
from tests.tools.test_recall_audience import neighbourhood
from tests.web.conftest import make_person, owner

__all__ = [
    "garden",
    "make_person",
    "neighbourhood",
    "options",
    "owner",
    "runtime",
    "start_runtime",
]
