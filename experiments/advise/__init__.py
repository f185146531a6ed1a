"""Which algorithm to choose: simulated, ranked, and verified by real runs."""
