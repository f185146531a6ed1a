"""How workers communicate, tuned while they train: what changes no value."""
