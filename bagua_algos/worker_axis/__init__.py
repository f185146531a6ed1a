"""Models and their rows on the worker axis."""
