"""Predictions held against measurements, and how fast all of this is."""
