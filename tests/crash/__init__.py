"""Killing the server at random moments, and what must hold when it is back.

``python -m tests.crash.kill_server --rounds 100`` does it for as long as wanted.
"""
