"""Data, loss and metric of each task."""
