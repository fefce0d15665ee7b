"""The life of a run.

::

    queued ──> running <──> waiting_approval
       │          └──> completed | stopped | failed | interrupted
       └──> stopped (withdrawn before it began)
"""

QUEUED = "queued"
RUNNING = "running"
WAITING_APPROVAL = "waiting_approval"
COMPLETED = "completed"
STOPPED = "stopped"
FAILED = "failed"
INTERRUPTED = "interrupted"

RUN_STATES = (QUEUED, RUNNING, WAITING_APPROVAL, COMPLETED, STOPPED, FAILED, INTERRUPTED)
ACTIVE_STATES = (RUNNING, WAITING_APPROVAL)
FINAL_STATES = (COMPLETED, STOPPED, FAILED, INTERRUPTED)

MESSAGE = "message"
REGENERATE = "regenerate"
CONTINUE = "continue"
COMPACT = "compact"
RUN_KINDS = (MESSAGE, REGENERATE, CONTINUE, COMPACT)

IDLE = "idle"
"""What a session is when no run of it is active or queued."""
