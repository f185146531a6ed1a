"""Small data of the true formats, and Datasets as a user writes them."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from experiments.tasks.base import Batch, Model
from experiments.tasks.own.dataset import DatasetTask


class Points(Dataset):
    """Regression, whose inputs are disturbed anew each time."""

    def __init__(self, size: int = 50, seed: int = 0, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 4, generator=generator)
        self.y = self.x @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + self.noise * torch.randn(4), self.y[index]


class Numbers(Points):
    """Whose labels are plain numbers, and so no `[1]`."""

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        x, y = super().__getitem__(index)
        return x, y.item()


class Stream(IterableDataset):
    """The same, in one order alone; `shares`: out over the processes that read, as torch's
    documentation has it.
    """

    def __init__(
        self, size: int = 50, noise: float = 0.0, shares: bool = False, ends_at: int | None = None
    ) -> None:
        self.points = Points(size, noise=noise)
        self.shares, self.ends_at = shares, ends_at or size

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info() if self.shares else None
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.points[index] for index in range(first, self.ends_at, every))


class Lines(IterableDataset):
    """The numbers of a file's lines, which say their own places, read as they are asked for."""

    def __init__(self, file: Path, size: int) -> None:
        self.file, self.size = file, size
        file.write_text("".join(f"{place:08d}\n" for place in range(size)))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        with self.file.open() as lines:
            for line in lines:
                yield torch.zeros(1), int(line)


class Broken(Points):
    """One of whose examples cannot be made."""

    def __init__(self, bad: int, error: type[Exception] = ValueError) -> None:
        super().__init__()
        self.bad, self.error = bad, error

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.bad:
            raise self.error(f"example {index} is damaged")
        return super().__getitem__(index)


class Signs(Points):
    """Two classes."""

    def __init__(self, size: int = 50, seed: int = 0) -> None:
        super().__init__(size, seed)
        self.targets = (self.y[:, 0] > 0).long().tolist()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], self.targets[index]


class Unlabelled(Signs):
    """The same without a label."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], -100


class Detached(nn.Linear):
    """Two outputs that nothing can be learned from."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Sometimes(Dataset):
    """Every third example is a number that Python, NumPy or torch draws; counts what is made."""

    def __init__(self) -> None:
        self.num_made = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.num_made += 1
        drawn = [random.random, np.random.random, lambda: torch.rand(()).item()][index // 3]
        return torch.tensor([drawn() if index % 3 == 2 else float(index)]), index


class Dictionaries(Points):
    """As libraries of language models make examples."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.x[index], "labels": self.y[index]}


def pair(items: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """A collate function for them."""
    return tuple(torch.stack([item[key] for item in items]) for key in ("input_ids", "labels"))


class Sentences(Dataset):
    """Dictionaries as transformers takes them, half of whose places are padding, in two classes; or
    with a label at each place.
    """

    def __init__(self, size: int = 40, seed: int = 0, labels: str = "class") -> None:
        chance = np.random.default_rng(seed)
        self.targets = chance.integers(2, size=size).tolist()
        self.ids = torch.from_numpy(chance.integers(2, 10, size=(size, 6)))
        self.ids[:, 0] = torch.tensor(self.targets)
        self.mask = torch.from_numpy(np.arange(6) < chance.integers(2, 7, size=(size, 1)))
        self.labels = labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        ids, mask = self.ids[index], self.mask[index]
        labels = self.targets[index] if self.labels == "class" else ids.where(mask, -100)
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


class MeanOfWords(nn.Module):
    """A classifier that takes its inputs by name; `each` place: one output for each."""

    def __init__(self, num_classes: int = 2, each: bool = False) -> None:
        super().__init__()
        self.words, self.top = nn.Embedding(10, 8), nn.Linear(8, num_classes)
        self.each = each

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        known = self.words(input_ids) * attention_mask.unsqueeze(-1)
        return self.top(known if self.each else known.sum(1) / attention_mask.sum(1, keepdim=True))


class Contrastive(DatasetTask):
    """Self-supervised: two calls of the model on views of an example, and no label."""

    def __init__(self, size: int = 50) -> None:
        parts = {"train": Points(size), "validation": Points(size, seed=1)}
        super().__init__(**parts, loss_function="mse_loss")

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """[w]"""
        x_wb, _ = batch
        return (model(x_wb) - model(-x_wb)).square().flatten(1).mean(1)


def pictures(root: Path, *, parts: tuple[str, ...] = ("",), size: int = 6) -> Path:
    """JPEGs of two classes, dark and bright, `size` of each in each part."""
    chance = np.random.default_rng(0)
    for part in parts:
        for name, light in (("dark", 30), ("bright", 200)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(size):
                pixels = chance.integers(light, light + 40, size=(20 + number, 30, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.jpg")
    return root


def cifar(root: Path, num_classes: int = 10, size: int = 4) -> Path:
    """The binary files, `size` images of each class in each."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    names, inner = (
        (names, "cifar-10-batches-bin")
        if num_classes == 10
        else (
            ["train.bin", "test.bin"],
            "cifar-100-binary",
        )
    )
    chance = np.random.default_rng(0)
    (root / inner).mkdir(parents=True)
    for name in names:
        y = chance.permutation(np.repeat(np.arange(num_classes), size)).astype(np.uint8)
        pixels = chance.integers(256, size=(len(y), 3072)).astype(np.uint8)
        pixels[:, :1024] = y[:, None]
        labels = [y[:, None]] if num_classes == 10 else [y[:, None] // 5, y[:, None]]
        (root / inner / name).write_bytes(np.concatenate([*labels, pixels], 1).tobytes())
    return root
