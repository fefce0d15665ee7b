"""What the tools for files have in common."""
