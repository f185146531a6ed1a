"""The cells that are measured and predicted."""

import itertools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import read_condition

SKIPPED_STEPS = 24
"""In which TCP's windows open: an exchange took up to 1.7 times longer for the first 20 steps. A
multiple of the longest period, that of local SGD.
"""
NUM_STEPS = 2 * SKIPPED_STEPS

ALGORITHMS = ("allreduce", "bytegrad", "qsgd", "decentralized", "local_sgd", "power_sgd")
PRESETS = ("none", "lan_1g", "slow_tcp", "wan", "lossy", "one_slow_worker")
"""The networks of the reference study."""

_SWEPT = {
    f"{rate_mbit} Mbit/s, {delay_ms} ms": {"rate_mbit": str(rate_mbit), "delay_ms": str(delay_ms)}
    for rate_mbit, delay_ms in itertools.product((50, 200, 400, 1000), (1, 10))
}
"""By name, what they have other than slow_tcp."""

_TINY = "mlp of 16"
_MODELS = {_TINY: ("model=mlp", "model.hidden=[16]")}
"""Models that are no files of `conf/model` as they are."""


class Cell(NamedTuple):
    """One point of the grid; `net` is a file of `conf/net`, or "200 Mbit/s, 1 ms"."""

    algo: str
    model: str
    workers: int
    net: str
    streams: int = 1
    pattern: str = "ring"

    @property
    def overrides(self) -> list[str]:
        """Of the app's configuration."""
        swept = [f"net.{key}={value}" for key, value in _SWEPT.get(self.net, {}).items()]
        return [
            f"algo={self.algo}",
            *_MODELS.get(self.model, (f"model={self.model}",)),
            *(("net=slow_tcp", *swept) if swept else (f"net={self.net}",)),
            *(f"workers={self.workers}", f"cluster.sharing={self.workers}"),
            *(f"streams={self.streams}", f"pattern={self.pattern}"),
            *(f"max_steps={NUM_STEPS}", f"eval_every={NUM_STEPS}"),
            f"log_every={SKIPPED_STEPS}",
        ]

    @property
    def condition(self) -> NetworkCondition:
        """Of its network."""
        preset = "slow_tcp" if self.net in _SWEPT else self.net
        return read_condition(preset, _SWEPT.get(self.net, {}))

    @property
    def is_held_out(self) -> bool:
        """Whether it is of the third by which no change of the model is chosen: drawn by a checksum
        of its fields.
        """
        return zlib.crc32(" ".join(map(str, self)).encode()) % 3 == 0


def _cells(
    algorithms: tuple[str, ...],
    model: str,
    workers: int,
    nets: tuple[str, ...],
    streams: int = 1,
    pattern: str = "ring",
) -> list[Cell]:
    return [
        Cell(algo, model, workers, net, streams, pattern)
        for algo, net in itertools.product(algorithms, nets)
    ]


_swept = tuple(net for net in _SWEPT if not net.startswith("400"))
_centralized = ("allreduce", "power_sgd")
_some = ("allreduce", "bytegrad", "decentralized", "local_sgd")
GRID = sorted(
    {
        *_cells(ALGORITHMS, "mlp", 4, _swept),
        *_cells(ALGORITHMS, "cnn", 4, PRESETS),
        *_cells(_some, "mlp", 2, ("lan_1g", "slow_tcp", "wan")),
        *_cells(_some, "mlp", 8, ("lan_1g", "slow_tcp", "wan")),
        *_cells(("allreduce", "decentralized"), _TINY, 16, ("slow_tcp",)),
        *_cells(_some[:3], "cnn", 4, ("lan_1g", "slow_tcp", "wan", "lossy"), 8),
        *_cells(_centralized, "mlp", 4, ("slow_tcp",), 1, "halving_doubling"),
        *_cells(_centralized, "mlp", 4, ("slow_tcp", "wan"), 8, "halving_doubling"),
    },
    key=lambda cell: cell[:3],
)
CI_GRID = [
    Cell("allreduce", "mlp", 4, "400 Mbit/s, 1 ms"),
    *(Cell(algo, "mlp", 2, "lan_1g") for algo in ("bytegrad", "local_sgd")),
]


def only(words: Sequence[str], cells: Sequence[Cell]) -> list[Cell]:
    """The cells with all of some values, as "net=wan" and "streams=8"; all without a word. Raises
    `UserError` where there are none.
    """
    wanted = [word.partition("=") for word in words]
    for name, _, _ in wanted:
        if name not in Cell._fields:
            raise UserError(f"{name} is no field of a cell: choose {', '.join(Cell._fields)}")
    found = [
        cell
        for cell in cells
        if all(str(getattr(cell, name)) == value for name, _, value in wanted)
    ]
    if not found:
        raise UserError(f"no cell has {' '.join(words)}: see results/validation/time.csv")
    return found
