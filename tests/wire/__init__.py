"""A local server that speaks the wire protocol of the Messages API.

The server refuses what the real API refuses, simulates prompt caching, and plays scripted
answers and faults (:mod:`tests.wire.scenario`). Tests, benchmarks and work without a key use
it. ``python -m tests.wire.server --port 8300`` runs it by itself.
"""
