"""Netlink: bridges, veth pairs, addresses, routes and queueing disciplines.

The only module that imports pyroute2. Each function acts on the network namespace that the
process is in, and raises `NamespaceError` if the kernel refuses.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import sched_netem

from netsim.errors import NamespaceError

INTERFACE = "eth0"
"""A worker's end of its link, in its own namespace."""

_NEW_NEIGHBOUR = struct.Struct("=IHHII BxxxiHBB HH4s HH6sxx")
"""nlmsghdr, ndmsg, and the attributes NDA_DST and NDA_LLADDR: see rtnetlink(7)."""

_REFUSAL = struct.Struct("=IHHII i")
"""nlmsghdr and the error's negative number."""

_RTM_NEWNEIGH, _CREATE_OR_REPLACE, _NUD_PERMANENT, _NDA_DST, _NDA_LLADDR = 28, 0x501, 0x80, 1, 2

# pyroute2 0.9 sends netem's rate a second time as TCA_RATE, which the kernel refuses.
sched_netem.fix_request = lambda request: request.pop("rate", None)  # pyright: ignore[reportAttributeAccessIssue]


def add_bridge(name: str) -> None:
    """Make a bridge and bring it up."""
    with _netlink(f"make the bridge {name}; load the kernel module bridge") as ip:
        ip.link("add", ifname=name, kind="bridge")
    bring_up(name)


def port_name(rank: int) -> str:
    """The hub's end of a worker's link."""
    return f"worker{rank}"


def mac_address(rank: int) -> str:
    """The MAC address of a worker's interface: locally administered, with the rank in the last two
    bytes.
    """
    return f"02:00:0a:00:{rank >> 8:02x}:{rank & 255:02x}"


def add_veth(
    name: str, *, mtu: int, peer: str, peer_pid: int | None = None, peer_mac: str | None = None
) -> None:
    """Make a pair of interfaces: `name` here, `peer` in the network namespace of a process."""
    far_end: dict[str, str | int] = {"ifname": peer, "mtu": mtu}
    if peer_pid is not None:
        far_end["net_ns_pid"] = peer_pid
    if peer_mac is not None:
        far_end["address"] = peer_mac
    with _netlink(f"make the veth pair {name}; load the kernel module veth") as ip:
        ip.link("add", ifname=name, kind="veth", mtu=mtu, peer=far_end)


def join_bridge(name: str, bridge: str) -> None:
    """Make `name` a port of the bridge."""
    with _netlink(f"make {name} a port of {bridge}") as ip:
        ip.link("set", index=_index(ip, name), master=_index(ip, bridge))


def bring_up(name: str) -> None:
    """Bring the interface up."""
    with _netlink(f"bring up {name}") as ip:
        ip.link("set", index=_index(ip, name), state="up")


def add_address(name: str, address: str, *, prefix_length: int) -> None:
    """Give the interface an IPv4 address, and with it the route to its subnet."""
    with _netlink(f"give {name} the address {address}") as ip:
        ip.addr("add", index=_index(ip, name), address=address, prefixlen=prefix_length)


def know_neighbours(name: str, mac_addresses: dict[str, str]) -> None:
    """Let the interface reach these IPv4 addresses without ARP: MAC address by IPv4 address.

    The kernel keeps at most 1,024 addresses that ARP has found, for all network namespaces of a
    host together (net.ipv4.neigh.default.gc_thresh3). 33 workers that all speak to each other
    need more, and what goes to an address too many is lost. Addresses given by hand do not count.

    All in one message, since each worker has to know each other and pyroute2 takes 0.6 ms for one.
    """
    if not mac_addresses:
        return
    with _netlink(f"tell {name} the addresses of its neighbours") as ip:
        index = _index(ip, name)
    messages = [
        _NEW_NEIGHBOUR.pack(
            *(_NEW_NEIGHBOUR.size, _RTM_NEWNEIGH, _CREATE_OR_REPLACE, 0, 0),
            *(socket.AF_INET, index, _NUD_PERMANENT, 0, 0),
            *(8, _NDA_DST, socket.inet_aton(address)),
            *(10, _NDA_LLADDR, bytes.fromhex(mac.replace(":", ""))),
        )
        for address, mac in mac_addresses.items()
    ]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.setblocking(False)  # it answers before `send` returns, and only to refuse
        kernel.send(b"".join(messages))
        with suppress(BlockingIOError):
            code = -_REFUSAL.unpack_from(kernel.recv(4096))[-1]
            raise NamespaceError(
                f"The kernel refused ({os.strerror(code)}) to tell {name} its neighbours."
            )


def set_congestion_control(name: str, algorithm: str) -> None:
    """Make TCP over the interface's subnet use `algorithm`, for both ends of a connection.

    By route, since a network namespace may not set `net.ipv4.tcp_congestion_control`.
    """
    with _netlink(f"use {algorithm} on {name}; load the kernel module tcp_{algorithm}") as ip:
        route = _subnet_route(ip, name)
        ip.route(
            "replace",
            dst=f"{route.get_attr('RTA_DST')}/{route['dst_len']}",
            prefsrc=route.get_attr("RTA_PREFSRC"),
            oif=route.get_attr("RTA_OIF"),
            scope="link",
            metrics={"cc_algo": algorithm},
        )


def congestion_control(name: str) -> str | None:
    """TCP's algorithm over the interface's subnet, read from the kernel; None: the host's own."""
    with _netlink(f"read the routes of {name}") as ip:
        metrics = _subnet_route(ip, name).get_attr("RTA_METRICS")
        return metrics.get_attr("RTAX_CC_ALGO") if metrics else None


def add_qdisc(name: str, arguments: dict) -> bool:
    """Hang a discipline (`IPRoute.tc` arguments) on the interface; False: the kernel lacks it."""
    with _netlink(f"shape {name} by {arguments}") as ip:
        try:
            ip.tc("add", index=_index(ip, name), **arguments)
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                return False
            raise
    return True


def has_qdisc(arguments: dict) -> bool:
    """Whether the kernel has a discipline, tried on this namespace's loopback."""
    if not add_qdisc("lo", arguments):
        return False
    with _netlink("take a discipline away") as ip:
        ip.tc("del", index=_index(ip, "lo"), parent=0xFFFFFFFF)
    return True


def send_single_frames(name: str) -> None:
    """Make the interface send single frames, not 64 KB at once (GSO), which would be lost as a
    whole.
    """
    with _netlink(f"switch GSO off on {name}") as ip:
        ip.link("set", index=_index(ip, name), gso_max_segs=1)


def max_segments(name: str) -> int:
    """How many frames the interface takes at once, read from the kernel."""
    with _netlink(f"read the properties of {name}") as ip:
        [link] = ip.get_links(_index(ip, name))
        return link.get_attr("IFLA_GSO_MAX_SEGS")


@contextmanager
def _netlink(purpose: str) -> Iterator[IPRoute]:
    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as error:
        raise NamespaceError(f"The kernel refused ({error.args[1]}) to {purpose}.") from error


def _index(ip: IPRoute, name: str) -> int:
    for index in ip.link_lookup(ifname=name):
        return index
    raise NamespaceError(f"There is no interface {name} in this network namespace.")


def _subnet_route(ip: IPRoute, name: str):
    main_table = 254
    routes = ip.get_routes(family=2, table=main_table, oif=_index(ip, name))
    return next(iter(routes))
