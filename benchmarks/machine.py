"""The machine under the figures, and what its processes use, read from ``/proc``."""

import os
import platform
from pathlib import Path
from tempfile import gettempdir
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_megabytes(pid: int) -> float:
    """Memory of a process, shared libraries included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def describe_machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "database": f"SQLite in {gettempdir()}",
        "load": round(os.getloadavg()[0], 2),
    }


def load_text() -> str:
    """How busy the machine is: its load, and the share of time in which something
    waited for a processor over the last ten seconds, where the kernel says so."""
    text = f"load {os.getloadavg()[0]:.1f}"
    try:
        pressure = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return text
    return f"{text}, {pressure.split()[1].removeprefix('avg10=')} % waited for a processor"
