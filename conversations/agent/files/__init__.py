"""Reading, listing, searching and changing a workspace's files, confined and bounded."""
