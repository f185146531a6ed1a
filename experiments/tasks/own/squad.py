"""SQuAD v1.1: where in a text the answer to a question stands: `task=squad task.root=squad/`.

Rajpurkar et al., arXiv 1606.05250. The files are those of the data set `squad` of Hugging Face:
columns question, context and answers, the last with text and answer_start.

A context is cut at t tokens, question included. In training an answer that is cut off is learnt to
be at place 0, as BERT's script has it; in evaluations it counts as missed.

Shapes: w workers held by this process, b examples of each, t places.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.tasks.base import Indices, Ratio, Split, TaskData
from experiments.tasks.own import answers
from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.files import OF_SQUAD, squad_files
from experiments.tasks.own.splits import DatasetSplit
from experiments.tasks.own.tables import Table, text_of
from experiments.tasks.own.tokens import Tokenizer, Tokens
from host.errors import UserError

SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "f1": answers.f1,
    "exact_match": answers.exact_match,
}


class Questions(Dataset[Any]):
    """Dictionaries as BERT takes them; the labels are the first and the last place of the answer,
    int64 [2].
    """

    def __init__(self, rows: Table, tokenizer: Tokenizer) -> None:
        self._rows, self._tokenizer = rows, tokenizer

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row, tokens = self._read(index)
        start = row["answers"]["answer_start"][0]
        end = start + len(row["answers"]["text"][0])
        spans = [(place, *span) for place, span in enumerate(tokens.spans) if span is not None]
        inside = [place for place, begins, ends in spans if begins < end and ends > start]
        is_whole = bool(inside) and max(ends for _, _, ends in spans) >= end
        labels = torch.tensor([inside[0], inside[-1]] if is_whole else [0, 0])
        return {**tokens.inputs, "labels": labels}

    def judged(self, index: int, outputs_2t: Tensor, score: Callable[..., float]) -> float:
        """How good the answer is that the outputs point to, by `score`."""
        row, tokens = self._read(index)
        is_text = torch.tensor([span is not None for span in tokens.spans]).numpy()
        if not is_text.any():
            return 0.0
        first, last = answers.best_span(outputs_2t.float().cpu().numpy(), is_text)
        begin, end = tokens.spans[first], tokens.spans[last]
        assert begin is not None and end is not None, "of the text"
        return score(row["context"][begin[0] : end[1]], row["answers"]["text"])

    def _read(self, index: int) -> tuple[dict[str, Any], Tokens]:
        row = self._rows[index]
        tokens = self._tokenizer(text_of(row, "question"), text_of(row, "context"))
        if not row["answers"]["text"]:
            raise UserError(
                f"question {index} has no answer, as in version 2 of SQuAD: take version 1.1"
            )
        return row, tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Squad(DatasetTask):
    """The training file is for training; the validation file is for validation and, since the test
    set is not published, for test.

    Args:
        root: the folder of the files.
        tokenizer: a tokenizer.json or its folder; None: BERT's English word pieces.
        max_tokens: t.

    Raises:
        UserError: files or tokenizer are not there.
    """

    root: str
    tokenizer: str | None = None
    max_tokens: int = 384
    metric: str | None = "f1"
    train: Any = None
    validation: Any = None

    def __post_init__(self) -> None:
        if self.max_tokens < 8:
            raise ValueError(f"task.max_tokens must be at least 8, got {self.max_tokens}")
        tokenizer = Tokenizer(self.tokenizer, self.max_tokens)
        for part, files in squad_files(self.root).items():
            rows = Table(files)
            if len(rows):
                text_of(rows[0], "answers")  # raises
            object.__setattr__(self, part, Questions(rows, tokenizer))
        object.__setattr__(self, "num_classes", self.max_tokens)
        super().__post_init__()

    def ratio(self, metric: str, split: Split) -> Ratio | None:
        """F1 and exact match are means over questions, of answers as texts."""
        if metric not in SCORES:
            return None
        assert isinstance(split, DatasetSplit), "this task's own"
        place, questions = split.place, split.dataset
        assert isinstance(questions, Questions), "this task's own"

        def sums(outputs_wb2t: Tensor, y_wb2: Tensor, at_wb: Indices) -> Tensor:
            told = torch.zeros(len(at_wb), 2, dtype=torch.float64)
            for worker, row in enumerate(at_wb.tolist()):
                for number, index in enumerate(row):
                    if index >= 0:
                        outputs = outputs_wb2t[worker, number]
                        told[worker, 0] += questions.judged(place(index), outputs, SCORES[metric])
                        told[worker, 1] += 1
            return told

        return sums

    def load(self) -> TaskData:
        """Raises UserError for a file without a row."""
        if not len(self.train) or not len(self.validation):
            raise UserError(f"task.root={self.root} has a file without a question: {OF_SQUAD}")
        return super().load()
