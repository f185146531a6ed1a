"""The page that holds the model against measurements that others have published."""

from collections.abc import Sequence

from experiments.predict.published import bagua, dlperf, one_bit_adam
from experiments.predict.published.table import PublishedTable

_HEAD = """# Predicted against published

`python -m experiments.published --out results/validation`

Predictions are simulated: a timeline, from shapes, by the algorithms' own code on meta tensors. Not
fitted to any table: peak rates of memory and links, constants of NCCL (estimates), a delay of 0.02
ms. Compute is a V100's, whose shares of its peak rates are fitted to single GPUs' throughputs that
others have published (`python -m experiments.devices v100`)."""


def tables() -> list[PublishedTable]:
    """All that are compared."""
    return [
        bagua.table(),
        one_bit_adam.table(),
        dlperf.table(),
    ]


def markdown(sections: Sequence[PublishedTable]) -> str:
    """The page: for each table its source, what was fitted, and a word on each row that is far
    off.
    """
    return "\n\n".join([_HEAD, *(section.markdown() for section in sections)]) + "\n"
