"""Threads that never keep a process from ending, and how it ends among them."""
