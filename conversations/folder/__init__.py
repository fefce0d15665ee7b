"""Reading what the product itself wants of a workspace's folder: confined, bounded."""
