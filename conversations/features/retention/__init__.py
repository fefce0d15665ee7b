"""How long sessions are kept: the hourly run, cold storage, bringing back."""
