"""Data sets that tests of loading share."""

from typing import Any

import torch
from torch.utils.data import Dataset


class Sequences(Dataset[Any]):
    """Sequences of 1 to 40 numbers; counts how often one is read."""

    def __init__(self, num_examples: int = 50) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, 41, (num_examples,), generator=generator).tolist()
        self.examples = [torch.rand(length, generator=generator) for length in lengths]
        self.num_read = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"examples": self.examples}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"num_read": 0}

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.num_read += 1
        return self.examples[index]
