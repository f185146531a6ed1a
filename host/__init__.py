"""What every package stands on: how commands begin and end, processes, and this host."""
