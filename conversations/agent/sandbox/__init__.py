"""Running commands that somebody else thought of.

A command runs in a bubblewrap sandbox: the workspace's folder at its own path, the system's
programs read-only, nothing else of the machine, no network unless it is allowed. ``bubblewrap``
says what a sandbox holds, ``support`` finds out whether this server can make one, ``protect`` (the
first program in a sandbox) keeps from a command what it must not change, ``supervise`` (a program
of its own) keeps a command's limits and ends everything that it started, ``running`` is what tools
call.
"""
