"""The only package that reads or writes the conversation tables.

Every write is a named function that runs in one short transaction and returns plain values. The
caller announces those values after the commit.
"""
