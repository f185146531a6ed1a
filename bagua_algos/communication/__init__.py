"""Messages between workers: communicators, collectives, topologies."""
