"""Running untrusted commands in a sandbox.

A command runs in a bubblewrap sandbox. The sandbox holds the workspace's folder at its own path and
the system's programs, read-only, and nothing else of the machine. It has no network unless that is
allowed. ``bubblewrap`` defines what a sandbox holds, and ``support`` finds out whether this server
can make one. ``protect`` is the first program in a sandbox; it protects files that the command must
not change. ``supervise`` is a separate program that enforces a command's limits and ends all its
processes. ``command_run`` is the interface for tools.
"""
