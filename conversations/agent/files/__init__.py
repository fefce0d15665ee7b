"""A workspace's folder: reading, listing and changing what lies in it, confined and bounded."""
