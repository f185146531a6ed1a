"""A case: a command, what is done to it, and when, all drawn from one seed."""

import random
from dataclasses import dataclass

from host import conf

KINDS = {"real": 40, "sim": 22, "sweep": 12, "torchrun": 8, "advise": 9, "report": 9}
"""Commands, by how often each is drawn."""

STRIKES = {
    **{"SIGKILL": 30, "SIGTERM": 12, "SIGINT": 12, "SIGSTOP": 16, "link down": 8},
    **{"full disk": 12, "memory": 8, "clock": 4, "nothing": 2},
}
"""What is done to them, by how often."""

VICTIMS = ("launcher", "hub", "crew", "switch", "worker 0", "worker 1", "any", "all")
NETS = ("none", "none", "lan_1g", "slow_tcp", "one_slow_worker")
WITHOUT_CHECKPOINT = ("torch_ddp_powersgd",)

USUAL_S = {"real": 5.0, "sim": 3.0, "sweep": 6.0, "torchrun": 20.0, "advise": 6.0, "report": 12.0}
"""Within which moments are drawn: about how long each kind takes on 2 busy cores."""

NUM_STEPS = 22
TIMEOUT_S = 4
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One command and what happens to it.

    Args:
        seed: of which the rest is drawn.
        kind: of `KINDS`.
        algo: the algorithm.
        net: the network.
        workers: of a run.
        strike: of `STRIKES`.
        victim: of `VICTIMS`; what has no such process is struck in another one.
        at_s: when, from the command's start; not used where `at_row` is given.
        at_row: when so many rows of metrics have been logged; None: `at_s` says when.
        for_s: how long a process is stopped, or a link is down; None: to the end.
        amount: of the disk, or what memory may still grow by, in bytes; of the clock, in seconds.
    """

    seed: int
    kind: str
    algo: str
    net: str
    workers: int
    strike: str
    victim: str
    at_s: float
    at_row: int | None
    for_s: float | None
    amount: int

    @property
    def with_checkpoints(self) -> bool:
        """Whether its run can be resumed."""
        return self.algo not in WITHOUT_CHECKPOINT

    @property
    def promises_bits(self) -> bool:
        """Whether a resumed run has the values of an undisturbed one: not where they depend on
        timing, nor with a hook of PyTorch's whose sums differ by a rounding from run to run, nor
        where DDP sums three workers or more in its first buckets again.
        """
        if self.algo in ("torch_ddp", "torch_ddp_bf16"):
            return self.workers == 2
        return self.algo not in ("async", "torch_ddp_powersgd")

    def told(self) -> str:
        """Such as "real choco_sgd on lan_1g, 2 workers: SIGKILL of hub after 3.1 s"."""
        when = f"after {self.at_s:.1f} s" if self.at_row is None else f"at row {self.at_row}"
        whom = "" if self.strike in ("full disk", "link down", "nothing") else f" of {self.victim}"
        long = "" if self.for_s is None else f" for {self.for_s:.1f} s"
        what = f"{self.strike}{whom} {when}{long}"
        return f"{self.kind} {self.algo} on {self.net}, {self.workers} workers: {what}"


def draw(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)
    kind = _drawn(chance, KINDS)
    algos = sorted(set(conf.files("algo")))
    if kind != "real" and kind != "torchrun":
        algos = [algo for algo in algos if not algo.startswith("torch_ddp")]  # has no simulation
    strikes = {name: often for name, often in STRIKES.items() if _fits(name, kind)}
    strike = _drawn(chance, strikes)
    with_rows = kind in ("real", "sim", "sweep", "torchrun") and chance.random() < 0.5
    return Case(
        seed=seed,
        kind=kind,
        algo=chance.choice(algos),
        net="none" if kind == "torchrun" else chance.choice(NETS),
        workers=chance.choice([2, 2, 3]),
        strike=strike,
        victim=chance.choice(VICTIMS),
        at_s=chance.random() * USUAL_S[kind],
        at_row=chance.randint(1, NUM_STEPS) if with_rows else None,
        for_s=_length(chance, strike),
        amount=_amount(chance, strike),
    )


def _drawn(chance: random.Random, often: dict[str, int]) -> str:
    return chance.choices([*often], [*often.values()])[0]


def _fits(strike: str, kind: str) -> bool:
    """Whether it can be done: only real workers have links, and srun or torchrun none of ours."""
    return strike != "link down" or kind == "real"


def _length(chance: random.Random, strike: str) -> float | None:
    if strike == "SIGSTOP":
        return chance.choice([None, chance.uniform(0.1, 3)])
    if strike == "link down":
        return chance.choice([60.0, chance.uniform(0.1, 1)])
    return None


def _amount(chance: random.Random, strike: str) -> int:
    match strike:
        case "full disk":
            return chance.choice([0, 0, chance.randint(20_000, 8_000_000)])  # 0: at its moment
        case "memory":
            return chance.randint(0, 80 * MIB)
        case "clock":
            return chance.choice([-86_400, -60, 60, 3_600, 86_400, 10 * 365 * 86_400])
    return 0
