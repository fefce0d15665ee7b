"""The states of an import that somebody started on the page."""

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"

STATES = (WAITING, RUNNING, DONE, FAILED, STOPPED)
OPEN_STATES = (WAITING, RUNNING)
