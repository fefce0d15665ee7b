"""The recall hint: one line that names turns outside the window."""


def find_hint(session_pk: int, text: str, *, floor: int) -> str:
    """A line for the model about turns below ``floor`` that the person's message
    ``text`` seems to be about; empty when there is none. Bounded in time."""
    return ""
