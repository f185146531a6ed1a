"""Links shaped by the kernel's queueing disciplines, joined by its bridge.

    worker 0  eth0 ---- worker0 |                         worker 0 ---- | node 0 |
    worker 1  eth0 ---- worker1 | bridge "hub"            worker 1 ---- | node 0 | ---- | "hub"
    worker 2  eth0 ---- worker2 |                         worker 2 ---- | node 1 | ---- |

What a worker sends is shaped at its eth0, what it receives at the hub's end of its link.
"""

from collections.abc import Callable

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.links import netlink
from netsim.links.netlink import INTERFACE, mac_address, port_name

_BRIDGE = "hub"


class KernelShaper:
    """A bridge, and a discipline at both ends of every link; see `shaper.Shaper`.

    Args:
        condition: of the links; it must not vary over time.
        num_workers: how many will be added.
        name: of the discipline.
        qdisc: the discipline that makes a link, as arguments of `IPRoute.tc`; empty for none.
    """

    def __init__(
        self,
        condition: NetworkCondition,
        num_workers: int,
        name: str,
        qdisc: Callable[[LinkCondition], dict],
    ) -> None:
        self.name = name
        self._condition = condition
        self._qdisc = qdisc
        self._single_frames = any(link.loss_pct for link in condition.all_links(num_workers))
        netlink.add_bridge(_BRIDGE)
        if condition.nodes is not None:
            for node in range(condition.node(num_workers - 1) + 1):
                self._add_node(node)

    def add_worker(self, rank: int, pid: int) -> None:
        """Make the link and shape its downlink."""
        port = port_name(rank)
        netlink.add_veth(
            port,
            mtu=self._condition.mtu,
            peer=INTERFACE,
            peer_pid=pid,
            peer_mac=mac_address(rank),
        )
        self._shape(port, self._condition.link(rank, "down"))
        nodes = self._condition.nodes
        netlink.join_bridge(port, _BRIDGE if nodes is None else _node(self._condition.node(rank)))
        netlink.bring_up(port)

    def set_up_worker(self, rank: int) -> None:
        """Shape the uplink, and send frame by frame where loss is asked."""
        if self._single_frames:
            netlink.send_single_frames(INTERFACE)  # else loss hits 64 KB at once
        self._shape(INTERFACE, self._condition.link(rank, "up"))

    def start(self) -> None:
        """Nothing is left to do."""

    def start_clock(self, at_s: float = 0.0) -> None:
        """Nothing changes over time."""

    def _add_node(self, node: int) -> None:
        """A bridge of the node's own, and its link to the bridge between nodes."""
        bridge, up, down = _node(node), f"{_node(node)}up", f"{_node(node)}down"
        netlink.add_bridge(bridge)
        netlink.add_veth(up, mtu=self._condition.mtu, peer=down)
        self._shape(up, self._condition.node_link("up"))
        self._shape(down, self._condition.node_link("down"))
        netlink.join_bridge(up, bridge)
        netlink.join_bridge(down, _BRIDGE)
        netlink.bring_up(up)
        netlink.bring_up(down)

    def _shape(self, interface: str, link: LinkCondition) -> None:
        if discipline := self._qdisc(link):
            netlink.add_qdisc(interface, discipline)


def _node(node: int) -> str:
    return f"node{node}"
