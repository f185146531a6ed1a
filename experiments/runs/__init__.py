"""Runs, their records, and the studies that they make up."""
