"""Scripts that kill processes at random moments and check the data after the restart.

``python -m tests.crash`` runs all of them once. ``python -m tests.crash.kill_server --rounds 100``
(or ``kill_tools``) runs one of them for as many rounds as wanted.
"""
