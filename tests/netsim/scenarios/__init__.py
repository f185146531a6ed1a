"""What the tests do in real namespaces: `python -m tests.netsim.scenarios NAME` prints JSON.

A process of its own, because pytest's may have threads (torch starts some), which fork dislikes.
"""
