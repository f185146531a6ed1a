"""transformers' Trainer on real gloo workers: `python -m
tests.bagua_algos.trainers.transformers_workers FOLDER 2`.
"""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainingArguments

from bagua_algos import Algorithm, AllReduce, Decentralized, LocalSGD
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.trainers.transformers import RelaxedTrainer
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import (
    ALGORITHMS,
    Batch,
    Regression,
    Spare,
    error_of,
    make_sgd,
    weights,
)

NO_LABEL = -100
"""What transformers leaves out of a loss."""


class Counting(Regression):
    """Divides its loss by the number of labels of the whole step, as language models do."""

    accepts_loss_kwargs = True

    def forward(self, x: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Batch:
        y_b, is_label = self.layers(x), labels != NO_LABEL
        num_items = is_label.sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": ((y_b - labels)[is_label] ** 2).sum() / num_items, "logits": y_b}


class Sharded(Regression):
    """Says of itself what transformers' `from_pretrained` would have noted."""

    is_distributed_loading_by_transformers = True


class Balanced(RelaxedTrainer):
    """Takes its examples by a sampler that deals them itself."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return plain_loop.balanced().sampler


class Unprepared(RelaxedTrainer):
    """Takes its examples by such a sampler as docs/trainers.md says, and notes which of each epoch
    it sees.
    """

    def get_train_dataloader(self) -> Any:
        loader = plain_loop.balanced()
        self.seen: dict[int, list[float]] = {}
        self.add_callback(SetEpoch(loader.sampler))
        return loader

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        of_epoch = self.seen.setdefault(int(self.state.epoch or 0), [])
        of_epoch += inputs["x"][:, 0].tolist()
        return super().training_step(model, inputs, *args, **kwargs)


class SetEpoch(TrainerCallback):
    """Has a sampler take another order in each epoch."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.sampler.set_epoch(int(state.epoch))


class Recorder(TrainerCallback):
    """This worker's own weights after the last epoch, and those that were evaluated."""

    def on_epoch_end(self, args, state, control, model: nn.Module, **kwargs) -> None:
        self.own = weights(model)

    def watch(self, model: nn.Module) -> None:
        model.register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, inputs: object, outputs: object) -> None:
        if not module.training:
            self.evaluated = weights(module)


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=plain_loop.NUM_EPOCHS,
        per_device_train_batch_size=plain_loop.BATCH_SIZE,
        gradient_accumulation_steps=plain_loop.ACCUMULATE,
        max_grad_norm=plain_loop.CLIP_NORM,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"save_strategy": "no"} | options,
    )


def of_both_workers(examples: Callable[[int], list[Batch]]) -> list[Batch]:
    """Their batches in turn, as accelerate shares them out."""
    size, (first, second) = plain_loop.BATCH_SIZE, [examples(rank) for rank in range(2)]
    return [
        example
        for start in range(0, len(first), size)
        for worker in (first, second)
        for example in worker[start : start + size]
    ]


def unevenly_labelled(rank: int) -> list[Batch]:
    """More labels on one worker than on the other, and in one batch than in the next."""
    examples = plain_loop.examples(rank)
    for i, example in enumerate(examples):
        example["labels"][: i % (2 + rank)] = NO_LABEL
    return examples


def make_trainer(
    algorithm: Algorithm | None,
    args: TrainingArguments,
    make_optimizer: Callable[[nn.Module], Optimizer] = make_sgd,
    make_model: type[Regression] = Regression,
    examples: Callable[[int], list[Batch]] = plain_loop.examples,
    **options: Any,
) -> tuple[Any, Recorder]:
    """transformers' own with its DDP, or ours."""
    model, data, recorder = make_model(), of_both_workers(examples), Recorder()
    make = Trainer if algorithm is None else partial(RelaxedTrainer, algorithm=algorithm, **options)
    trainer = make(
        model,
        args,
        train_dataset=data,
        eval_dataset=data[:16],
        optimizers=(make_optimizer(model), None),
        callbacks=[recorder],
    )
    recorder.watch(model)
    return trainer, recorder


def train(*args: Any, **options: Any) -> plain_loop.Weights:
    """This worker's own weights after the last epoch."""
    trainer, recorder = make_trainer(*args, **options)
    trainer.train()
    return recorder.own


def like_ddp(folder: Path) -> dict[str, Any]:
    """The Trainer's own DDP and all-reduce, with a layer that is never used, and with losses that
    divide by the number of labels on all workers; also over several streams, which do not change
    the sum of two workers.
    """
    spare = {"make_model": Spare, "make_optimizer": plain_loop.make_adam}
    counting = {"make_model": Counting, "examples": unevenly_labelled}
    striped = spare | {"streams": plain_loop.STREAMS}
    over_streams = plain_loop.over_streams(lambda: train(AllReduce(), arguments(folder), **striped))
    return {"over streams": over_streams} | {
        f"{name}{suffix}": train(algorithm, arguments(folder), **options)
        for name, algorithm in {"ddp": None, "relaxed": AllReduce()}.items()
        for suffix, options in {"": spare, " counting": counting}.items()
    }


def like_loop(name: str, folder: Path) -> dict[str, Any]:
    algorithm, make_optimizer = ALGORITHMS[name]
    each = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    args = arguments(folder, **each, metric_for_best_model="number")
    numbers = count()  # the best will be the last
    trainer, recorder = make_trainer(
        *(algorithm, args, make_optimizer), compute_metrics=lambda _: {"number": next(numbers)}
    )
    trainer.train()
    again, resumed = make_trainer(algorithm, arguments(folder), make_optimizer)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    saved = load_file(folder / "checkpoint-9" / "model.safetensors")
    return {
        "loop": plain_loop.train(name, args.process_index),
        "own": recorder.own,
        "resumed": resumed.own,
        "at the end": weights(trainer.model),
        "evaluated": recorder.evaluated,
        "saved": {key: saved[key] for key in recorder.own},
    }


def counting_alone(folder: Path) -> dict[str, Any]:
    """Workers whose weights are averaged, each of which counts its own labels."""
    algorithm, model = LocalSGD(interval=2), Counting()
    args = arguments(folder)

    def loss(batch: Batch, of_step: list[Batch]) -> Tensor:
        num_items = sum((other["labels"] != NO_LABEL).sum() for other in of_step)
        return model(**batch, num_items_in_batch=num_items)["loss"]

    own = unevenly_labelled(args.process_index)
    return {
        "own": train(algorithm, args, make_model=Counting, examples=unevenly_labelled),
        "loop": plain_loop.train_by(algorithm, model, make_sgd(model), loss, own),
        "the caller's": args.average_tokens_across_devices,
    }


def dealt(folder: Path) -> list[list[float]]:
    """What this worker sees in each epoch of all examples, by a sampler that deals them itself."""
    args, data = arguments(folder), plain_loop.examples(0)
    trainer = Unprepared(Regression(), args, algorithm=Decentralized(), train_dataset=data)
    trainer.train()
    return [trainer.seen[epoch] for epoch in range(plain_loop.NUM_EPOCHS)]


def compiled(folder: Path) -> dict[str, Any]:
    AcceleratorState._reset_state()
    args = arguments(folder, torch_compile=True, torch_compile_backend="eager")
    own = train(Decentralized(), args)
    AcceleratorState._reset_state()
    return {"own": own, "loop": plain_loop.train("decentralized", args.process_index)}


def alone(folder: Path) -> str:
    """As if nobody had started several processes."""
    try:
        return error_of(lambda: make_trainer(AllReduce(), arguments(folder)))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def refused_deepspeed(folder: Path) -> str:
    args = arguments(folder)
    args.deepspeed = "deepspeed.json"  # it is not installed, or the arguments would have it
    return error_of(lambda: make_trainer(AllReduce(), args))


def refused(folder: Path, saved: Path, rank: int) -> dict[str, str]:
    """`saved` is a checkpoint of decentralized training."""

    def with_options(**options: Any) -> str:
        return error_of(lambda: make_trainer(AllReduce(), arguments(folder, **options)))

    def schedule_free(model: nn.Module) -> Optimizer:
        return plain_loop.ScheduleFreeSGD(model.parameters(), lr=0.1)

    def resume(algorithm: Algorithm, checkpoint: Path) -> str:
        trainer, _ = make_trainer(algorithm, arguments(folder))
        return error_of(lambda: trainer.train(resume_from_checkpoint=str(checkpoint)))

    args, data = arguments(folder), plain_loop.examples(0)
    balanced = Balanced(Regression(), args, algorithm=AllReduce(), train_dataset=data)

    missing, mixed = (folder / f"{name} {rank}" for name in ("missing", "mixed"))
    for copy in missing, mixed:
        shutil.copytree(saved, copy)
    (missing / f"worker_{rank}.pt").unlink()
    shutil.copy(saved.parent / "checkpoint-6" / f"worker_{rank}.pt", mixed)
    return {
        "LOMO": with_options(optim="lomo"),
        "batch sizes that are looked for": with_options(auto_find_batch_size=True),
        "DDP's options": with_options(ddp_broadcast_buffers=True),
        "FSDP": with_options(fsdp=True),
        "DeepSpeed": refused_deepspeed(folder),
        "sharded when it was loaded": error_of(
            lambda: make_trainer(AllReduce(), arguments(folder), make_model=Sharded)
        ),
        "schedule-free": error_of(lambda: train(Decentralized(), arguments(folder), schedule_free)),
        "balanced": error_of(balanced.train),
        "streams": error_of(lambda: train(AllReduce(), arguments(folder), streams=17)),
        "pattern": error_of(lambda: train(AllReduce(), arguments(folder), pattern="tree")),
        "no file of its own": resume(Decentralized(), missing),
        "of another step": resume(Decentralized(), mixed),
        "of another algorithm": resume(AllReduce(), saved),
    }


def unprepared(folder: Path) -> str:
    """What a version of transformers that prepares training elsewhere would come to."""
    trainer, _ = make_trainer(AllReduce(), arguments(folder))
    try:
        trainer.training_step(trainer.model, {})
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it has trained")


def main(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    alone_at_first = alone(OUTPUT)
    rank = plain_loop.as_torchrun_does(communicator)
    return {
        "like ddp": like_ddp(OUTPUT),
        **{name: like_loop(name, OUTPUT / name) for name in ALGORITHMS},
        "counting alone": counting_alone(OUTPUT),
        "compiled": compiled(OUTPUT),
        "dealt": dealt(OUTPUT),
        "refused": {
            "alone": alone_at_first,
            "not prepared": unprepared(OUTPUT),
            **refused(OUTPUT, OUTPUT / "decentralized" / "checkpoint-3", rank),
        },
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    OUTPUT = folder / "output"
    sys.exit(fork_workers(main, folder, int(sys.argv[2])))
