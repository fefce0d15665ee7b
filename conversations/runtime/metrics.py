"""What this process does right now, and how much the archive holds in flight."""

from conversations.archive.runs import count_runs_by_state
from conversations.archive.storage import data_free_bytes
from conversations.domain.runs import QUEUED, RUNNING, WAITING_APPROVAL
from conversations.feature import Metric, features

from .current import started_runtime


def read_metrics() -> list[Metric]:
    states = count_runs_by_state((QUEUED, RUNNING, WAITING_APPROVAL))
    runtime = started_runtime()
    servers = runtime.tool_servers.count_states() if runtime else {}
    return [
        _gauge("loom_runs_queued", "Messages that wait.", states.get(QUEUED, 0)),
        _gauge("loom_runs_running", "Answers that are being written.", states.get(RUNNING, 0)),
        _gauge(
            "loom_runs_waiting_approval",
            "Runs that wait for a person's approval.",
            states.get(WAITING_APPROVAL, 0),
        ),
        _gauge(
            "loom_process_runs",
            "Runs that this process carries out.",
            runtime.queue.run_count if runtime else 0,
        ),
        _gauge(
            "loom_process_sockets",
            "Pages that are connected to this process.",
            runtime.hub.subscriber_count if runtime else 0,
        ),
        _gauge(
            "loom_process_streams",
            "Programs that follow a run or a session of this process, or wait for one.",
            runtime.hub.listener_count if runtime else 0,
        ),
        Metric(
            name="loom_process_lines_refused_total",
            help="Sockets and streams refused, since a person had too many in this process.",
            kind="counter",
            value=runtime.lines.refused if runtime else 0,
        ),
        _gauge(
            "loom_tool_servers_ready",
            "Connections to tool servers that hold.",
            servers.get("ready", 0),
        ),
        _gauge(
            "loom_tool_servers_failed",
            "Tool servers that do not answer.",
            servers.get("failed", 0),
        ),
        _gauge(
            "loom_disk_free_bytes",
            "Bytes free where the data folder and a SQLite database lie, the least of the two.",
            data_free_bytes(),
        ),
        *(metric for feature in features() for metric in feature.metrics()),
    ]


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return Metric(name=name, help=help_text, value=value)
