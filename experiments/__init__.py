"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`."""
