"""One training loop, for real and simulated workers alike."""
