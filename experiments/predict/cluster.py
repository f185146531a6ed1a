"""Where the workers stand, from words of a command line:

    nodes=16x8      16 nodes of 8 workers
    nic_gbit=25     what each NIC of a node carries; by default the rate of `net`
    rails=8         NICs of a node
    inside=pcie     what links the workers of a node; by default NVLink, where the device has it

The delay, jitter, loss and queue of `net` are those between nodes. Inside a node the device's own
links have no delay but their library's. All NICs of a node are one link of their rates' sum: a
single message takes all rails too, which needs a library that spreads it (NCCL's PXN).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf, open_dict

from host.errors import UserError
from netsim.conditions.link import LINK_FIELDS

WORDS = ("nodes", "nic_gbit", "rails", "inside")
MAX_RAILS = 10_000


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`num_nodes` of `node_size` workers, each with `rails` NICs of `nic_gbit`, None: `net`'s rate.

    Raises `UserError` for a cluster that nobody has.
    """

    num_nodes: int
    node_size: int
    nic_gbit: float | None = None
    rails: int = 1

    def __post_init__(self) -> None:
        if min(self.num_nodes, self.node_size) < 1:
            raise UserError(f"nodes={self.num_nodes}x{self.node_size} is no cluster: take 16x8")
        if self.nic_gbit is not None and not self.nic_gbit > 0:
            raise UserError(f"nic_gbit={self.nic_gbit:g} carries nothing: choose more")
        if not 1 <= self.rails <= MAX_RAILS:
            raise UserError(f"rails={self.rails:,}: a node has 1 to {MAX_RAILS:,} NICs")

    def place(self, config: DictConfig) -> None:
        """Write the cluster into the configuration: its workers, and the nodes of its network.

        Raises `UserError` for a network that has nodes, or unlike workers, of its own.
        """
        net = config.net
        for name in ("nodes", "workers", "up", "down", "schedule", "trace", "faults"):
            if net.get(name) is not None:
                raise UserError(
                    f"net.{name} and nodes={self.num_nodes}x{self.node_size} both say what links "
                    "the workers: leave one of them out"
                )
        rate_mbit = net.rate_mbit if self.nic_gbit is None else 1000 * self.nic_gbit
        between = {name: net[name] for name in LINK_FIELDS if name in net}
        between["rate_mbit"] = None if rate_mbit is None else rate_mbit * self.rails
        plain = dict.fromkeys(("delay_ms", "jitter_ms", "loss_pct"), 0)
        nodes = {"size": self.node_size, "between": between}
        with open_dict(config):
            config.net = OmegaConf.merge(net, {"rate_mbit": None, **plain, "nodes": nodes})
            config.workers = self.num_nodes * self.node_size


def cluster_of(words: Mapping[str, str], *, has_nodes: bool = False) -> Cluster | None:
    """What `words` ask for; None if they name no nodes. `has_nodes`: the network has nodes of its
    own, whose workers `inside` links, too. Raises `UserError` for what is none.
    """
    if "nodes" not in words:
        of_nodes = ("nic_gbit", "rails") if has_nodes else ("nic_gbit", "rails", "inside")
        alone = [key for key in of_nodes if key in words]
        if alone:
            raise UserError(f"{alone[0]} is of a node: say nodes=16x8, too")
        return None
    try:
        num_nodes, node_size = (int(part) for part in words["nodes"].split("x"))
        nic_gbit = float(words["nic_gbit"]) if "nic_gbit" in words else None
        rails = int(words.get("rails", "1"))
    except ValueError:
        given = " ".join(f"{key}={words[key]}" for key in WORDS if key in words)
        raise UserError(f"{given} cannot be read: write nodes=16x8 nic_gbit=25 rails=8") from None
    return Cluster(num_nodes=num_nodes, node_size=node_size, nic_gbit=nic_gbit, rails=rails)
