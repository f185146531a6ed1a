"""The workers probe each link before training; the proof compares the results with the limits."""
