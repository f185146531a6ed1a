"""The host's memory, in which all simulated workers have to fit."""
