"""GLUE: nine tasks of one sentence or two: `task=glue task.name=sst2 task.root=glue/sst2/`.

Wang et al., arXiv 1804.07461. The files are those of the data set `glue` of Hugging Face, a folder
for each task. WNLI has no more than chance to learn, and is left out as in BERT's paper; of STS-B,
whose labels are scores, the loss is the squared error.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.files import GLUE_TASKS, glue_files
from experiments.tasks.own.tables import Table, text_of
from experiments.tasks.own.tokens import Tokenizer
from host.errors import UserError

COLUMNS = {name: ("sentence1", "sentence2") for name in GLUE_TASKS} | {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
}
"""The texts of each task."""


class Sentences(Dataset[Any]):
    """Dictionaries as BERT takes them."""

    def __init__(self, rows: Table, columns: tuple[str, ...], tokenizer: Tokenizer) -> None:
        self._rows, self._columns, self._tokenizer = rows, columns, tokenizer
        self.targets = rows.column("label")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._rows[index]
        tokens = self._tokenizer(*(text_of(row, column) for column in self._columns))
        label = row["label"]
        is_class = isinstance(label, int)
        y = torch.tensor(label if is_class else [label], dtype=None if is_class else torch.float32)
        return {**tokens.inputs, "labels": y}


@dataclass(frozen=True, kw_only=True, eq=False)
class Glue(DatasetTask):
    """The validation file is for validation and, since labels of the test set are not published,
    for test.

    Args:
        name: one of `COLUMNS`.
        root: the folder of its files, or one with a folder of this name.
        tokenizer: a tokenizer.json or its folder; None: BERT's English word pieces.
        max_tokens: to which texts are padded and cut.

    Raises:
        UserError: another name, or files or tokenizer that are not there.
    """

    name: str
    root: str
    tokenizer: str | None = None
    max_tokens: int = 128
    train: Any = None
    validation: Any = None

    def __post_init__(self) -> None:
        if self.name not in COLUMNS:
            raise UserError(
                f"GLUE has no task {self.name}: task.name is one of {', '.join(COLUMNS)}"
            )
        if self.name == "stsb":
            object.__setattr__(self, "loss_function", "mse_loss")
        tokenizer = Tokenizer(self.tokenizer, self.max_tokens)
        for part, files in glue_files(self.root, self.name).items():
            rows = Table(files)
            for column in (*COLUMNS[self.name], "label"):
                text_of(rows[0] if len(rows) else {}, column)  # raises
            object.__setattr__(self, part, Sentences(rows, COLUMNS[self.name], tokenizer))
        super().__post_init__()
