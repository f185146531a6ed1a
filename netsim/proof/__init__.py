"""Is the network what was asked for? The workers probe each link before training; the proof holds
what they measured against the limits.
"""
