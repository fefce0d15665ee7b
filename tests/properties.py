"""How many examples a property test tries: what the profile says (``tests/conftest.py``),
or a third of it where examples are costly.

Each run draws examples of its own, so that runs add up. ``pytest
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
"""For examples that write to a database or take tens of milliseconds each. Those that
write tidy up, or do not mind the rows of the examples before them."""
