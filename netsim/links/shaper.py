"""What makes the links between workers follow a condition: one protocol, three back ends."""

from functools import partial
from typing import Protocol

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.errors import NamespaceError
from netsim.links import netem, netlink, tbf
from netsim.links.kernel import KernelShaper
from netsim.links.switch import SwitchShaper, check_switch


class Shaper(Protocol):
    """The part of a network that shapes; used in the hub but for `set_up_worker`."""

    name: str
    """Which back end, for the record."""

    def add_worker(self, rank: int, pid: int) -> None:
        """Make the worker's link from this namespace to its process's namespace."""
        ...

    def set_up_worker(self, rank: int) -> None:
        """Shape what the worker sends; called in its own process and namespace."""
        ...

    def start(self) -> None:
        """All links are there: let packets pass."""
        ...

    def start_clock(self, at_s: float = 0.0) -> None:
        """Begin the condition's time with `at_s`, or set it to that. From any process of the
        hub's.
        """
        ...


def choose(condition: NetworkCondition, num_workers: int) -> Shaper:
    """The back end that the condition names, or else the best that this kernel has.

    That is tbf for rates alone, netem for more, and the switch where the kernel lacks these, or
    links change over time. Call it in a network namespace of the process's own.

    Raises:
        NamespaceError: if the back end cannot do what the condition asks; says what to do.
    """
    every_link = condition.all_links(num_workers)
    name = condition.backend or _best(condition, every_link)
    check = {"tbf": _check_tbf, "netem": netem.check, "switch": check_switch}[name]
    try:
        for link in every_link:
            check(link)
    except ValueError as error:
        raise NamespaceError(str(error)) from error
    if name == "switch":
        return SwitchShaper(condition, num_workers)
    if condition.varies:
        raise NamespaceError(
            f"backend={name} cannot change links over time: set backend to switch or null, or "
            f"leave out schedule, trace and faults."
        )
    discipline = tbf if name == "tbf" else netem
    qdisc = tbf.qdisc if name == "tbf" else partial(netem.qdisc, mtu=condition.mtu)
    is_needed = condition.backend or not all(link.is_ideal for link in every_link)
    if is_needed and not _has(name):
        raise NamespaceError(f"This kernel has no queueing discipline {name}: {discipline.ESCAPE}.")
    return KernelShaper(condition, num_workers, name, qdisc)


def _best(condition: NetworkCondition, every_link: list[LinkCondition]) -> str:
    if condition.varies:
        return "switch"
    if not any(link.needs_more_than_rate for link in every_link):
        return "tbf" if all(link.is_ideal for link in every_link) or _has("tbf") else "switch"
    return "netem" if _has("netem") else "switch"


def _has(kind: str) -> bool:
    sample = tbf.qdisc(LinkCondition(rate_mbit=1))
    return netlink.has_qdisc(sample if kind == "tbf" else netem.qdisc(LinkCondition(delay_ms=1)))


def _check_tbf(link: LinkCondition) -> None:
    if link.needs_more_than_rate:
        raise ValueError(
            "backend=tbf knows rates only: set delay_ms, jitter_ms and loss_pct to zero, or "
            "backend to netem, switch or null."
        )
    tbf.check(link)
