"""Import and export of sessions: see README.md."""
