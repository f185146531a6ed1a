"""Networks for workers: conditions, and real links on one host that are shaped to follow them."""

from host import commands

commands.starting()
