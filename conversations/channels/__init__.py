"""Other services where people talk to the model: entry points, as ``web`` is for browsers."""
