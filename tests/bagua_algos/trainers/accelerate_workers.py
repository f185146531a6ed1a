"""Accelerate on real gloo workers: `python -m
tests.bagua_algos.trainers.accelerate_workers FOLDER 2`.
"""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from bagua_algos import Algorithm, AllReduce, Decentralized, is_distributed
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.trainers.accelerate import RelaxedAccelerator
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import ALGORITHMS, Regression, error_of, weights

OPTIONS: dict[str, Any] = {"cpu": True, "gradient_accumulation_steps": plain_loop.ACCUMULATE}

relaxed = partial(RelaxedAccelerator, **OPTIONS)


def train_epoch(accelerator: Accelerator, model: nn.Module, optimizer: Optimizer) -> None:
    for batch in plain_loop.batches(plain_loop.examples(accelerator.process_index)):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            if accelerator.sync_gradients:
                if accelerator.scaler is not None:  # as clip_grad_norm_ does in float16
                    accelerator.scaler.unscale_(optimizer.optimizer)
                accelerator.clip_grad_norm_(model.parameters(), plain_loop.CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()


def trained(
    accelerator: Accelerator,
    make_optimizer: Callable[[nn.Module], Optimizer] = plain_loop.make_sgd,
) -> plain_loop.Weights:
    model = Regression()
    wrapped, optimizer = accelerator.prepare(model, make_optimizer(model))
    for _ in range(plain_loop.NUM_EPOCHS):
        train_epoch(accelerator, wrapped, optimizer)
    accelerator.free_memory()
    return weights(model)


def scaled(accelerator: Accelerator) -> Accelerator:
    """With the scaler that it makes for float16 on a GPU."""
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return accelerator


def like_ddp() -> dict[str, Any]:
    """Accelerate's own DDP, and all-reduce; also over several streams, which do not change the sum
    of two workers.
    """
    striped = relaxed(AllReduce(), streams=plain_loop.STREAMS)
    return {
        "over streams": plain_loop.over_streams(lambda: trained(striped)),
        "ddp": trained(Accelerator(**OPTIONS)),
        "relaxed": trained(relaxed(AllReduce())),
        "ddp in fp16": trained(scaled(Accelerator(**OPTIONS))),
        "relaxed in fp16": trained(scaled(relaxed(AllReduce()))),
    }


def like_loop(name: str, folder: Path) -> dict[str, Any]:
    algorithm, make_optimizer = ALGORITHMS[name]
    accelerator, model = relaxed(algorithm), Regression()
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    train_epoch(accelerator, model, optimizer)
    accelerator.save_state(str(folder))
    for _ in range(1, plain_loop.NUM_EPOCHS):
        train_epoch(accelerator, model, optimizer)
    own = weights(model)
    accelerator.save_model(model, folder / "model")
    accelerator.free_memory()

    accelerator, resumed = relaxed(algorithm), Regression()
    resumed = accelerator.prepare(resumed)
    optimizer = accelerator.prepare(make_optimizer(resumed))
    accelerator.load_state(str(folder))
    for _ in range(1, plain_loop.NUM_EPOCHS):
        train_epoch(accelerator, resumed, optimizer)
    own_resumed = weights(resumed)
    accelerator.free_memory()
    saved = load_file(folder / "model" / "model.safetensors")
    return {
        "loop": plain_loop.train(name, accelerator.process_index),
        "scaled": trained(scaled(relaxed(algorithm)), make_optimizer),
        "own": own,
        "resumed": own_resumed,
        "at the end": weights(model),
        "saved": {key: saved[key] for key in own},
    }


def alone() -> str:
    """As if nobody had started several processes."""
    try:
        return error_of(lambda: relaxed(AllReduce()))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def refused_options() -> dict[str, str]:
    ddp, fsdp = DistributedDataParallelKwargs(), FullyShardedDataParallelPlugin()
    all_reduce = partial(relaxed, AllReduce())

    def prepared(**options: Any) -> None:
        model = Regression()
        all_reduce(**options).prepare(model, plain_loop.make_sgd(model))

    return {
        "DDP's options": error_of(lambda: all_reduce(kwargs_handlers=[ddp])),
        "FSDP": error_of(lambda: all_reduce(fsdp_plugin=fsdp)),
        "streams": error_of(lambda: prepared(streams=17)),
        "pattern": error_of(lambda: prepared(pattern="tree")),
        "joining": error_of(lambda: all_reduce().join_uneven_inputs([])),
    }


def refused_to_prepare() -> dict[str, str]:
    model = Regression()
    two = [plain_loop.make_sgd(layer) for layer in (model.layers[0], model.layers[3])]
    schedule_free = plain_loop.ScheduleFreeSGD(model.parameters(), lr=0.1)
    unprepared = relaxed(AllReduce())
    apart = unprepared.prepare(Regression())
    return {
        "two optimizers": error_of(lambda: relaxed(AllReduce()).prepare(model, *two)),
        "a model too late": error_of(lambda: relaxed(AllReduce()).prepare(two[0])),
        "no optimizer": error_of(
            lambda: train_epoch(unprepared, apart, plain_loop.make_sgd(apart))
        ),
        "schedule-free": error_of(lambda: relaxed(Decentralized()).prepare(model, schedule_free)),
        "balanced": error_of(lambda: relaxed(AllReduce()).prepare(plain_loop.balanced())),
    }


def refused_closure() -> str:
    accelerator, model = relaxed(AllReduce()), Regression()
    model, optimizer = accelerator.prepare(model, torch.optim.LBFGS(model.parameters()))
    batch = next(plain_loop.batches(plain_loop.examples(accelerator.process_index)))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        return loss

    return error_of(lambda: optimizer.step(closure))


def refused_to_load(saved: Path, rank: int) -> dict[str, str]:
    """`saved` is a checkpoint of decentralized training after 3 steps."""

    def load(algorithm: Algorithm, folder: Path) -> None:
        accelerator, model = relaxed(algorithm), Regression()
        accelerator.prepare(model, plain_loop.make_sgd(model))
        try:
            accelerator.load_state(str(folder))
        finally:
            accelerator.free_memory()

    missing, mixed = (saved.parent / f"{name} {rank}" for name in ("missing", "mixed"))
    for folder in missing, mixed:
        shutil.copytree(saved, folder)
    (missing / f"worker_{rank}.pt").unlink()
    own = torch.load(mixed / f"worker_{rank}.pt", weights_only=False)
    own["algorithm"]["step"] += rank
    torch.save(own, mixed / f"worker_{rank}.pt")
    return {
        "too early": error_of(lambda: relaxed(AllReduce()).load_state(str(saved))),
        "no file of its own": error_of(lambda: load(Decentralized(), missing)),
        "of another step": error_of(lambda: load(Decentralized(), mixed)),
        "of another algorithm": error_of(lambda: load(AllReduce(), saved)),
    }


def ended() -> dict[str, Any]:
    """After `end_training`, which takes Accelerate's process group along; of a model that was
    prepared twice.
    """
    accelerator, model = relaxed(Decentralized()), Regression()
    model = accelerator.prepare(model)
    model, optimizer = accelerator.prepare(model, plain_loop.make_sgd(model))
    train_epoch(accelerator, model, optimizer)
    own = weights(model)
    accelerator.end_training()
    # For the program to have one to destroy.
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    return {"own": own, "at the end": weights(model), "is plain": not is_distributed(model)}


def main(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    alone_at_first = alone()
    rank = plain_loop.as_torchrun_does(communicator)
    return {
        "like ddp": like_ddp(),
        **{name: like_loop(name, CHECKPOINTS / name) for name in ALGORITHMS},
        "refused": {
            "alone": alone_at_first,
            **refused_options(),
            "LBFGS": refused_closure(),
            **refused_to_prepare(),
            **refused_to_load(CHECKPOINTS / "decentralized", rank),
        },
        "ended": ended(),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    CHECKPOINTS = folder / "checkpoints"
    sys.exit(fork_workers(main, folder, int(sys.argv[2])))
