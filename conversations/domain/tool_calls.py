"""The life of a tool call, and what a person may decide about one.

::

    started ──> waiting_approval ──> running ──> completed
       └────────────┴──────────────────┤
                                       └──> denied | stopped | interrupted

``started`` is recorded with the answer that holds the call; ``running`` is recorded
before anything is done, so that after a crash nothing is done twice.
"""

STARTED = "started"
WAITING = "waiting_approval"
RUNNING = "running"
COMPLETED = "completed"
DENIED = "denied"
STOPPED = "stopped"
INTERRUPTED = "interrupted"

OPEN_STATES = (STARTED, WAITING, RUNNING)
TOOL_CALL_STATES = (*OPEN_STATES, COMPLETED, DENIED, STOPPED, INTERRUPTED)

READS, CHANGES = "reads", "changes"
EFFECTS = (READS, CHANGES)
"""What a call does: look at things, or change something (a file, a service, a process)."""

READ_ONLY, ASK, AUTO = "read_only", "ask", "auto"
POLICIES = (READ_ONLY, ASK, AUTO)

BY_POLICY, ONCE, ALWAYS, DENY = "policy", "once", "always", "deny"
DECISIONS = (BY_POLICY, ONCE, ALWAYS, DENY)
"""Who let a call run: the workspace's policy, a person for this call, a person for this
kind of call in this workspace; or a person did not."""
