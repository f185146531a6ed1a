"""Is the network what was asked for? A probe measures each link before training, by the workers
themselves; the proof is that all that it measured keeps the limits.
"""
