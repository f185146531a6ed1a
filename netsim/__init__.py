"""Networks for workers: conditions, and real links on one host that are shaped to follow them."""

from kernels import commands

commands.starting()
