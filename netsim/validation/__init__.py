"""The simulated and the shaped network held against measurements."""
