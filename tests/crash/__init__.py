"""Killing processes at random moments, and what must hold when they are back.

``python -m tests.crash`` does all of it once, ``python -m tests.crash.kill_server --rounds 100``
(or ``kill_tools``) a part for as long as wanted.
"""
