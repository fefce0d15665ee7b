"""The only code that reads or writes the conversation tables.

Every write is a named function that is one short transaction; it returns plain
values, and whoever calls it announces them after the commit.
"""
