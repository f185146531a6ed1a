"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`."""

from relaxlab import commands

commands.starting()
