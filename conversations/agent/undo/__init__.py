"""Undoable changes to a workspace's files: the earlier content is stored before it is replaced."""
