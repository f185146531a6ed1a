"""bagua_net: a network plugin for NCCL that spreads every message over several TCP streams."""

from host import commands

commands.starting()
