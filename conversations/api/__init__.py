"""The HTTP API: entry points for programs, as ``web`` is for browsers."""
