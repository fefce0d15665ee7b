"""Real servers of the Model Context Protocol, some of which misbehave."""
