"""What each process of a run writes to go on with."""
