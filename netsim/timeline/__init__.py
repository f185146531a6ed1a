"""Simulated time: a cost model of operations, and the clocks of workers."""
