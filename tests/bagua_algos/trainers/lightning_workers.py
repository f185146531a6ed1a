"""Lightning on real gloo workers: `python -m tests.bagua_algos.trainers.lightning_workers FOLDER
2`.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import AsyncCheckpointIO, MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from bagua_algos import Algorithm, AllReduce, Context, Decentralized, LocalSGD
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.trainers.lightning import RelaxedStrategy
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import ALGORITHMS, Regression, error_of, weights

RANK = -1
FORWARD_HAS_BEGUN = Event()


@dataclass(frozen=True, kw_only=True)
class Announcing(Algorithm):
    """Tells when the engine hears that a forward begins."""

    def on_forward(self, context: Context) -> None:
        FORWARD_HAS_BEGUN.set()


class Module(pl.LightningModule):
    """Calls its network either itself or by way of its own forward."""

    def __init__(self, make_optimizers: Callable[[nn.Module], Any], *, by_forward: bool) -> None:
        super().__init__()
        self.net = Regression()
        self.make_optimizers = make_optimizers
        self.by_forward = by_forward
        self.own: plain_loop.Weights = {}
        self.evaluated: plain_loop.Weights = {}

    def forward(self, x, labels):
        return self.net(x=x, labels=labels)

    def training_step(self, batch, batch_idx):
        return (self if self.by_forward else self.net)(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        self.evaluated = weights(self.net)

    def on_train_end(self) -> None:
        self.own = weights(self.net)

    def configure_optimizers(self):
        return self.make_optimizers(self)


class ListeningModule(Module):
    """Calls its network only once its forward was announced; counts the steps where it was not."""

    num_unheard = 0

    def training_step(self, batch, batch_idx):
        self.num_unheard += not FORWARD_HAS_BEGUN.wait(30)
        FORWARD_HAS_BEGUN.clear()
        return super().training_step(batch, batch_idx)


class ManualModule(Module):
    """Accumulates, clips and steps by itself."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer, is_last = self.optimizers(), (batch_idx + 1) % plain_loop.ACCUMULATE == 0
        with optimizer.toggle_model(sync_grad=is_last):
            self.manual_backward(self.net(**batch)["loss"] / plain_loop.ACCUMULATE)
        if is_last:
            self.clip_gradients(optimizer, gradient_clip_val=plain_loop.CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()


class RecordingModule(Module):
    """Notes which examples it sees in each epoch, by their first inputs."""

    def on_train_epoch_start(self) -> None:
        self.seen = [*getattr(self, "seen", []), []]

    def training_step(self, batch, batch_idx):
        self.seen[-1] += batch["x"][:, 0].tolist()
        return super().training_step(batch, batch_idx)


def fit(
    strategy: Any,
    make_optimizers: Callable[[nn.Module], Any] = plain_loop.make_sgd,
    *,
    by_forward: bool = False,
    resume: Path | None = None,
    make_module: type[Module] = Module,
    compiled: bool = False,
    data: DataLoader[Any] | None = None,
    **options: Any,
) -> Module:
    """A module after training by all of the trainer's options that every case has."""
    module = make_module(make_optimizers, by_forward=by_forward)
    if module.automatic_optimization:
        options["accumulate_grad_batches"] = plain_loop.ACCUMULATE
        options["gradient_clip_val"] = plain_loop.CLIP_NORM
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=plain_loop.NUM_EPOCHS,
        use_distributed_sampler=data is not None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing="callbacks" in options,
        num_sanity_val_steps=0,
        **options,
    )
    given = torch.compile(module, backend="eager") if compiled else module
    own = DataLoader(plain_loop.examples(RANK), plain_loop.BATCH_SIZE)
    trainer.fit(given, data or own, own, ckpt_path=resume)
    return module


def relaxed(algorithm: Algorithm, *args: Any, **options: Any) -> Module:
    return fit(RelaxedStrategy(algorithm), *args, **options)


def like_ddp() -> dict[str, Any]:
    """Lightning's own DDP and all-reduce, in float32, with a scaler of float16, and over several
    streams, which do not change the sum of two workers.
    """
    results = {}
    for strategy in "ddp", "relaxed":
        results[strategy] = weights(fit(strategy))
        results[f"{strategy} in fp16"] = weights(fit(strategy, plugins=[half()]))
    striped = RelaxedStrategy(AllReduce(), streams=plain_loop.STREAMS)
    results["over streams"] = plain_loop.over_streams(lambda: weights(fit(striped)))
    return results


def half() -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))


def half_with_memory() -> plain_loop.Weights:
    """An algorithm that has to know the scaler."""
    algorithm, make_optimizer = ALGORITHMS["qadam"]
    return relaxed(algorithm, make_optimizer, plugins=[half()]).own


def like_loop(name: str, folder: Path) -> dict[str, Any]:
    algorithm, make_optimizer = ALGORITHMS[name]
    saving = ModelCheckpoint(
        folder,
        filename="{epoch}",
        save_top_k=-1,
        save_on_train_epoch_end=name != "decentralized",  # which saves at the end of validation
    )
    later = [AsyncCheckpointIO()] if name == "qadam" else []
    whole = relaxed(algorithm, make_optimizer, by_forward=True, callbacks=[saving], plugins=later)
    whole.trainer.strategy.barrier()
    link = folder / f"of {RANK}.ckpt"
    link.symlink_to("epoch=0.ckpt")
    resumed = relaxed(algorithm, make_optimizer, resume=link)
    saved = torch.load(folder / f"epoch={plain_loop.NUM_EPOCHS - 1}.ckpt")["state_dict"]
    return {
        "loop": plain_loop.train(name, RANK),
        "own": whole.own,
        "resumed": resumed.own,
        "at the end": weights(whole.net),
        "evaluated": whole.evaluated,
        "saved": {key: saved[f"net.{key}"] for key in whole.own},
    }


def grown(folder: Path) -> dict[str, Any]:
    """Two workers go on from a checkpoint that calls itself one of a single worker."""
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    whole = relaxed(AllReduce(), callbacks=[saving])
    whole.trainer.strategy.barrier()
    parts = folder / "epoch=0.ckpt.workers"
    if RANK == 0:
        (parts / "1.pt").unlink()
        first = torch.load(parts / "0.pt")
        first["algorithm"]["of"]["number of workers"] = 1
        torch.save(first, parts / "0.pt")
    whole.trainer.strategy.barrier()
    return {"own": whole.own, "resumed": relaxed(AllReduce(), resume=folder / "epoch=0.ckpt").own}


def other_ways() -> dict[str, Any]:
    """A compiled module, one that takes its steps by itself, and one that never calls its own
    forward.
    """
    heard = relaxed(Announcing(), make_module=ListeningModule)
    assert isinstance(heard, ListeningModule)
    return {
        "unheard": heard.num_unheard,
        "loop": plain_loop.train("decentralized", RANK),
        "compiled": relaxed(Decentralized(), by_forward=True, compiled=True).own,
        "manual": relaxed(Decentralized(), make_module=ManualModule).own,
    }


def dealt() -> list[list[float]]:
    """What this worker sees in each epoch of all examples, by a sampler that deals them itself."""
    module = relaxed(Decentralized(), make_module=RecordingModule, data=plain_loop.balanced())
    assert isinstance(module, RecordingModule)
    return module.seen


def removed(folder: Path) -> list[str]:
    """What is there after training, where only the last checkpoint is kept."""
    relaxed(LocalSGD(), callbacks=[ModelCheckpoint(folder, filename="{epoch}")])
    return sorted(path.name for path in folder.iterdir())


def refused(saved: Path) -> dict[str, str]:
    """`saved` has the checkpoints of local SGD."""
    local_sgd = partial(relaxed, ALGORITHMS["local_sgd"][0])
    moved, mixed = (saved / f"{name} {RANK}.ckpt" for name in ("moved", "mixed"))
    for path in moved, mixed:
        shutil.copy(saved / "epoch=0.ckpt", path)
    shutil.copytree(saved / "epoch=1.ckpt.workers", f"{mixed}.workers")

    def two(module: nn.Module) -> list[torch.optim.Optimizer]:
        return [plain_loop.make_sgd(module) for _ in range(2)]

    def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(module.parameters())

    def schedule_free(module: nn.Module) -> torch.optim.Optimizer:
        return plain_loop.ScheduleFreeSGD(module.parameters(), lr=0.1)

    return {
        "two optimizers": error_of(lambda: local_sgd(two, make_module=ManualModule)),
        "LBFGS": error_of(lambda: local_sgd(lbfgs)),
        "streams": error_of(lambda: fit(RelaxedStrategy(AllReduce(), streams=17))),
        "pattern": error_of(lambda: fit(RelaxedStrategy(AllReduce(), pattern="tree"))),
        "schedule-free": error_of(lambda: local_sgd(schedule_free)),
        "no file of its own": error_of(lambda: local_sgd(resume=moved)),
        "of another step": error_of(lambda: local_sgd(resume=mixed)),
        "of another algorithm": error_of(
            lambda: relaxed(Decentralized(), resume=saved / "epoch=0.ckpt")
        ),
    }


def main(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    global RANK
    RANK = plain_loop.as_torchrun_does(communicator)
    return {
        "like ddp": like_ddp(),
        **{name: like_loop(name, CHECKPOINTS / name) for name in ALGORITHMS},
        "half with memory": half_with_memory(),
        "grown": grown(CHECKPOINTS / "grown"),
        "other ways": other_ways(),
        "dealt": dealt(),
        "removed": removed(CHECKPOINTS / "removed"),
        "refused": refused(CHECKPOINTS / "local_sgd"),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    CHECKPOINTS = folder / "checkpoints"
    sys.exit(fork_workers(main, folder, int(sys.argv[2])))
