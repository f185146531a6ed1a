"""Real links on this host, shaped to follow a condition."""
