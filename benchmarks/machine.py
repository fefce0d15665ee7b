"""The machine that is measured, and the resources of its processes, read from ``/proc``."""

import os
import platform
from pathlib import Path
from tempfile import gettempdir
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_megabytes(pid: int) -> float:
    """Return the memory of a process, including shared libraries."""
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
    """Return the load of the machine as text.

    If the kernel reports it, the text includes the share of the last ten seconds in which any
    process waited for a processor.
    """
    text = f"load {os.getloadavg()[0]:.1f}"
    try:
        pressure = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return text
    return f"{text}, {pressure.split()[1].removeprefix('avg10=')} % waited for a processor"
