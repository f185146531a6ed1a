"""Whether simulated workers learn as real ones do."""
