"""Real servers of the Model Context Protocol, good and bad ones."""
