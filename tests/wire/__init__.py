"""A local server that speaks the wire protocol of the Messages API.

It refuses what the real API refuses, simulates prompt caching, and plays scripted
answers and faults (:mod:`tests.wire.scenario`), for tests, benchmarks and work
without a key. ``python -m tests.wire.server --port 8300`` runs it by itself.
"""
