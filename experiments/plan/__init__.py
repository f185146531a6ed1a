"""What to run: from the command line to a checked plan."""
