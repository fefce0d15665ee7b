"""Review: the queue of sessions, samples, notes, flags, marks and the audit log."""
