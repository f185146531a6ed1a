"""What all-reduces by several transports have taken over one network: a record, and its table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import truediv
from statistics import median
from typing import Any

from host import markdown
from host.words import counted

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """All-reduces by transport and MiB: the seconds of the slower worker, one a round; and of those
    that were left out, the seconds that were expected.

    `refused` says why there are none.
    """

    net: str
    links: str = ""
    rounds: int = 0
    shared_gpu: bool = False
    seconds: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    left_out: dict[str, dict[int, float]] = field(default_factory=dict)
    refused: str | None = None

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_transfers(record: Mapping[str, Any]) -> Transfers:
    """From a record that JSON has kept, whose keys are text. Raises `KeyError`, `TypeError`."""
    by_size = {
        key: {
            name: {int(mb): value for mb, value in of.items()} for name, of in record[key].items()
        }
        for key in ("seconds", "left_out")
    }
    return Transfers(**{**record, **by_size})


def page(transfers: Transfers) -> str:
    """What was measured in one sentence, and a table; or why nothing was. Markdown."""
    if transfers.refused is not None:
        return f"{transfers.net}: {transfers.refused}"
    where = "one GPU, on which their kernels take turns" if transfers.shared_gpu else "two GPUs"
    return (
        f"{transfers.net}, links by {transfers.links}: all-reduces of two NCCL workers on {where}; "
        f"Mbit/s each way, medians of {counted(transfers.rounds, 'interleaved round')}, least and "
        f"greatest\n\n{table(transfers)}"
    )


def table(transfers: Transfers) -> str:
    """One row a size; a column each transport, and one after each two of them: how many times
    faster the second is, the median over the rounds. Markdown.
    """
    names = list(transfers.seconds)
    pairs = list(zip(names[::2], names[1::2], strict=True))
    found = [*transfers.seconds.values(), *transfers.left_out.values()]
    rows = []
    for size_mb in sorted({size_mb for of in found for size_mb in of}):
        row = [f"{size_mb}"]
        for pair in pairs:
            row += [_cell(transfers, name, size_mb) for name in pair]
            row.append(_times(transfers, pair, size_mb))
        rows.append(row)
    head = ["MiB", *(cell for pair in pairs for cell in (*pair, "times"))]
    return markdown.table(head, rows, "r" * len(head))


def _cell(transfers: Transfers, name: str, size_mb: int) -> str:
    seconds = transfers.seconds[name].get(size_mb)
    if seconds is None:
        expected_s = transfers.left_out.get(name, {}).get(size_mb)
        return "not measured" if expected_s is None else f"left out: about {expected_s:.0f} s"
    mbit = [8e-6 * size_mb * MIB / took_s for took_s in seconds]
    return f"{median(mbit):.4g} ({min(mbit):.4g} to {max(mbit):.4g})"


def _times(transfers: Transfers, pair: tuple[str, str], size_mb: int) -> str:
    first, second = (transfers.seconds[name].get(size_mb) for name in pair)
    if first is None or second is None:
        return "-"
    return f"{median(map(truediv, first, second)):.2f}"
