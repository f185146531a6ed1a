"""What real workers talk over: torch's process groups, and the memory of a host that all share."""
