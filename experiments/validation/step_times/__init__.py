"""Simulated step times against real ones: the cells, both times, and the page."""
