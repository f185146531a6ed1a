"""By which interface of this host another one is reached."""

import ipaddress
import socket
import struct

LOOPBACK = "lo"
_DISCARD = 9


def own_address(address: str) -> str:
    """The address of this host from which `address`, a name or a number, is reached.

    Raises:
        OSError: there is no such host, or no route to it.
    """
    family, target = _find(address)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # which sends nothing
        return probe.getsockname()[0]


def interface_to(address: str) -> str | None:
    """The interface that leads to `address`, a name or a number; None: it is not known, as where
    the address is of IPv6.

    Raises:
        OSError: there is no such host.
    """
    family, (number, *_) = _find(address)
    if ipaddress.ip_address(number).is_loopback:
        return LOOPBACK
    if family != socket.AF_INET:
        return None
    with open("/proc/net/route") as table:
        return _longest_match(number, table.read().splitlines()[1:])


def _find(address: str) -> tuple[socket.AddressFamily, tuple]:
    """A host's family and address with a port: of IPv4 where it has one, else of IPv6."""
    found = socket.getaddrinfo(address, _DISCARD, type=socket.SOCK_DGRAM)
    family, *_, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, target


def _longest_match(address: str, routes: list[str]) -> str | None:
    """Of the lines of Linux's routing table, whose numbers are hexadecimal, the last byte first."""
    (target,) = struct.unpack("=I", socket.inet_aton(address))
    best_mask, best = -1, None
    for line in routes:
        interface, destination, _, flags, *_, mask, _, _, _ = line.split()
        is_up = int(flags, 16) & 1
        if is_up and target & int(mask, 16) == int(destination, 16):
            bits = int(mask, 16).bit_count()
            if bits > best_mask:
                best_mask, best = bits, interface
    return best
