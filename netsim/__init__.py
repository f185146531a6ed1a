"""Networks for workers: conditions, and real links on one host that are shaped to follow them."""

from relaxlab import commands

commands.starting()
