"""Runs: queue, loop, live broadcast, stop, recovery. One runtime for each process."""
