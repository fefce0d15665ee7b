"""The HTTP API: the entry points for programs. Those for browsers are in ``web``."""
