"""Lightning: `Trainer(strategy=RelaxedStrategy(LocalSGD(interval=8)))`."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

from pytorch_lightning import LightningModule, Trainer  # pyright: ignore[reportMissingImports]
from pytorch_lightning.plugins.io import (  # pyright: ignore[reportMissingImports]
    CheckpointIO,
    TorchCheckpointIO,
)
from pytorch_lightning.strategies import (  # pyright: ignore[reportMissingImports]
    DDPStrategy,
    StrategyRegistry,
)
from pytorch_lightning.trainer.states import TrainerFn  # pyright: ignore[reportMissingImports]

import bagua_algos
from bagua_algos.algorithms import AllReduce
from bagua_algos.checkpoint import check_whole
from bagua_algos.communication.patterns import Pattern
from bagua_algos.communication.streams import NumStreams
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import DEFAULT_BUCKET_BYTES, DEFAULT_TIMEOUT_S
from bagua_algos.engine.script.saves import snapshot
from bagua_algos.trainers.worker_state import (
    UNLIKE_STEPS,
    check_optimizer,
    load_worker_state,
    part_of,
    reading,
    settle,
    to_device,
    worker_state,
)

_OTHERWISE = "to begin anew with its weights, call load_from_checkpoint and give fit no ckpt_path"


class RelaxedStrategy(DDPStrategy):
    """Lightning's "ddp", with `algorithm` in place of DistributedDataParallel.

    Validation runs in the workers' consensus, checkpoints hold it, and after `fit` every worker's
    model is it. Beside a checkpoint `x.ckpt` lies the folder `x.ckpt.workers` with a file a worker,
    by which `fit(ckpt_path="x.ckpt")` goes on bit for bit.

    Args:
        algorithm: the relaxation.
        bucket_bytes: see `bagua_algos.distribute`, like the next four.
        timeout_s: seconds.
        find_unused_parameters: whether parameters may be without a gradient on all workers.
        streams: gloo's connections between each two workers; "auto" measures at every start.
        pattern: of gloo's all-reduces, in the same way.
        pieces: whether streams take pieces of large messages; left out: where "auto" has several.
        shared_memory: see `bagua_algos.distribute`.
        process_group_backend: see `DDPStrategy`, like the last one.
        start_method: how Lightning starts the processes, where torchrun has not.

    Raises:
        ValueError: in `fit`: not exactly one optimizer, or whatever `distribute` refuses; a
            checkpoint without this worker's file.
    """

    strategy_name = "relaxed"

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        find_unused_parameters: bool = False,
        streams: NumStreams | None = None,
        pattern: Pattern | None = None,
        pieces: bool | None = None,
        shared_memory: bool | None = None,
        process_group_backend: str | None = None,
        start_method: Literal["popen", "spawn", "fork", "forkserver"] = "popen",
    ) -> None:
        super().__init__(process_group_backend=process_group_backend, start_method=start_method)
        self.algorithm = algorithm
        self._options: dict[str, Any] = {
            "bucket_bytes": bucket_bytes,
            "timeout_s": timeout_s,
            "find_unused_parameters": find_unused_parameters,
            "streams": streams,
            "pattern": pattern,
            "pieces": pieces,
            "shared_memory": shared_memory,
        }
        self._evaluation = ExitStack()
        self._is_evaluating = False
        self._has_failed = False
        self._checkpoint_path = ""

    def configure_ddp(self) -> None:
        """Wrap the model in nothing."""

    def setup(self, trainer: Trainer) -> None:
        """Distribute the model and its optimizer, once they are where they stay."""
        super().setup(trainer)
        self._has_failed = False
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise ValueError(
                f"configure_optimizers has returned {len(self.optimizers)} optimizers, and "
                "RelaxedStrategy trains by one: give it all parameters, in groups where their "
                "options differ, or write the loop yourself with bagua_algos.distribute"
            )
        check_optimizer(self.optimizers[0], self.algorithm)
        bagua_algos.distribute(
            self._module,
            self.optimizers[0],
            self.algorithm,
            grad_scaler=getattr(self.precision_plugin, "scaler", None),
            **self._options,
        )

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """By way of the module's `__call__`, whose hooks tell the engine that forward begins."""
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(
                self._module, self._module, "training_step", *args, **kwargs
            )

    def block_backward_sync(self) -> Any:
        """For all but the last micro-batch of a step."""
        return bagua_algos.no_sync(self._module)

    def on_validation_start(self) -> None:
        """Enter the consensus, if this is within `fit`."""
        if self._is_training:
            self._evaluation.enter_context(bagua_algos.consensus(self._module))
            self._is_evaluating = True

    def on_validation_end(self) -> None:
        """Return to this worker's own weights."""
        self._evaluation.close()
        self._is_evaluating = False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The consensus. A collective call within `fit`."""
        with self._consensus() as spread:
            state = super().lightning_module_state_dict()
            return state if spread else dict(snapshot(state))  # with a spread it is a copy

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save the consensus, and this worker's part beside it. A collective call."""
        if self._is_training and "optimizer_states" in checkpoint:
            filepath = self.broadcast(filepath)  # its name may have a metric of this worker's
            with self._own_weights():
                own = worker_state(self._module, self.optimizers[0])
                own["global_step"] = checkpoint["global_step"]
                self._own_io.save_checkpoint(own, _own_file(filepath, self.global_rank))
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """The part that all workers share; `load_optimizer_state_dict` finds the other one."""
        self._checkpoint_path = checkpoint_path
        return super().load_checkpoint(checkpoint_path, weights_only)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Take up this worker's own weights, optimizer and algorithm's state.

        Raises `ValueError` where there is no file of this worker's, or it is another file or of
        another step.
        """
        path = _own_file(self._checkpoint_path, self.global_rank)
        own = part_of(self.global_rank, self._load_part, self.algorithm)
        if own is None:
            raise ValueError(
                f"there is no {path}: the checkpoint was saved by another strategy, after fit, or "
                f"by fewer workers; {_OTHERWISE}"
            )
        if own["global_step"] != checkpoint["global_step"]:
            raise ValueError(
                f"{path} is of step {own['global_step']}, and {self._checkpoint_path} of step "
                f"{checkpoint['global_step']}: {UNLIKE_STEPS}"
            )
        load_worker_state(self._module, self.optimizers[0], own)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove the workers' parts, too."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            self._own_io.remove_checkpoint(_folder(filepath))

    def on_exception(self, exception: BaseException) -> None:
        """The other workers may not have failed: nothing collective from here on. A consensus that
        validation was in is left.
        """
        self._has_failed = True
        self.on_validation_end()
        super().on_exception(exception)

    def teardown(self) -> None:
        """Leave every worker with the consensus, and a plain model."""
        if self._is_training and not self._has_failed:
            settle(self._module)
        super().teardown()

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None, "the trainer connects it first"
        return self.lightning_module

    @property
    def _is_training(self) -> bool:
        return self.lightning_module is not None and bagua_algos.is_distributed(self._module)

    @property
    def _own_io(self) -> CheckpointIO:
        """Without a wrapper that saves later: algorithms' states have classes that it cannot copy,
        and change in place.
        """
        return getattr(self.checkpoint_io, "checkpoint_io", None) or self.checkpoint_io

    def _consensus(self) -> AbstractContextManager[object]:
        if self._is_training and not self._is_evaluating:
            return bagua_algos.consensus(self._module)
        return nullcontext()

    @contextmanager
    def _own_weights(self) -> Iterator[None]:
        """Out of the consensus, where a checkpoint is saved at the end of validation."""
        was_evaluating = self._is_evaluating
        self.on_validation_end()
        yield
        if was_evaluating:
            self.on_validation_start()

    def _load_part(self, rank: int) -> dict[str, Any] | None:
        """That of worker `rank`, if it has one."""
        path, to = _own_file(self._checkpoint_path, rank), to_device(self.root_device)
        try:
            with reading(path, _OTHERWISE):
                if type(self._own_io) is TorchCheckpointIO and os.path.isfile(path):
                    check_whole(path)
                return self._own_io.load_checkpoint(path, map_location=to, weights_only=True)
        except FileNotFoundError:
            return None


def _own_file(checkpoint_path: Any, rank: int) -> str:
    return os.path.join(_folder(checkpoint_path), f"{rank}.pt")


def _folder(checkpoint_path: Any) -> str:
    """Where the workers' parts of a checkpoint are; the path may be a link to it."""
    path = os.fspath(checkpoint_path)
    return f"{os.path.realpath(path) if os.path.islink(path) else path}.workers"


StrategyRegistry.register(
    RelaxedStrategy.strategy_name,
    RelaxedStrategy,
    description="One process a worker, trained by all-reduce; make one for another algorithm",
    algorithm=AllReduce(),
)
