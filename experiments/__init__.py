"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`."""

from kernels import commands

commands.starting()
