"""What reviewers need: the queue of sessions, samples, notes, flags and marks, the audit log."""
