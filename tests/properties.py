"""The number of examples that property tests try.

It is the number of the profile (``tests/conftest.py``), or a third of it if examples are costly.
Each run draws different examples, so repeated runs cover more. ``pytest
--hypothesis-profile=thorough`` tries twenty times as many.
"""

from hypothesis import HealthCheck, settings

costly = settings(
    max_examples=settings.default.max_examples // 3,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        *settings.default.suppress_health_check,
    ],
)
"""For examples that write to a database or take tens of milliseconds each.

Examples that write must clean up, or must not depend on the rows of earlier examples.
"""
