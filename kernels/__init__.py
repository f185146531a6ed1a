"""Compression kernels: a plain torch reference of each, and fast forms equal to it bit for bit."""

from host import commands

commands.starting()
