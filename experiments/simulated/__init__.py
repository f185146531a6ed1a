"""Simulated workers: all in one process, on simulated clocks."""
