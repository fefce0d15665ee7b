"""Changing files of a workspace so that it can be undone: what is replaced is kept first."""
