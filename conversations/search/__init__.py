"""Searching the archive: one session (``find``), or all readable ones (``find_everywhere``).

The queries depend on the database.
"""
