"""transformers' Trainer: `RelaxedTrainer(model, args, algorithm=LocalSGD(interval=8), ...)`."""

import copy
import logging
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate.accelerator import Accelerator  # pyright: ignore[reportMissingImports]
from accelerate.optimizer import AcceleratedOptimizer  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer import Trainer  # pyright: ignore[reportMissingImports]
from transformers.training_args import (  # pyright: ignore[reportMissingImports]
    OptimizerNames,
    TrainingArguments,
)

import bagua_algos
from bagua_algos.communication.patterns import Pattern
from bagua_algos.communication.streams import NumStreams
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import DEFAULT_BUCKET_BYTES, DEFAULT_TIMEOUT_S
from bagua_algos.trainers.accelerate import check_is_data_parallel, check_is_not_dealt
from bagua_algos.trainers.worker_state import (
    UNLIKE_STEPS,
    check_optimizer,
    load_own_file,
    load_worker_state,
    save_own_file,
    settle,
    worker_state,
)

LOGGER = logging.getLogger(__name__)


class RelaxedTrainer(Trainer):
    """transformers' `Trainer`, with `algorithm` in place of DistributedDataParallel.

    `evaluate`, `predict` and `save_model` are of the workers' consensus, and collective calls while
    training goes on. A checkpoint holds the consensus, and `worker_0.pt` and so on, by which
    `train(resume_from_checkpoint=...)` goes on bit for bit. When training ends, every
    worker's model is the consensus, and plain.

    Where workers do not agree after every step, `average_tokens_across_devices` becomes False: it
    would have them wait for each other at every step, and scale each one's step by its number of
    tokens. Gradient algorithms look for unused parameters, as `Trainer` does, unless
    `ddp_find_unused_parameters` is False; the others do if it is True.

    For a subclass of `Trainer`: `class RelaxedSeq2SeqTrainer(RelaxedTrainer, Seq2SeqTrainer)`.

    Args:
        args: all positional arguments of `Trainer`.
        algorithm: the relaxation.
        timeout_s: see `bagua_algos.distribute`, seconds.
        streams: as there, gloo's connections between each two workers; "auto" measures at every
            start.
        pattern: of gloo's all-reduces, in the same way.
        pieces: whether streams take pieces of large messages; left out: where "auto" has several.
        shared_memory: see `bagua_algos.distribute`.
        options: all keyword arguments of `Trainer`.

    Raises:
        ValueError: one process alone, a sharded kind of training, or what else is not supported.
    """

    def __init__(
        self,
        *args: Any,
        algorithm: Algorithm,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        streams: NumStreams | None = None,
        pattern: Pattern | None = None,
        pieces: bool | None = None,
        shared_memory: bool | None = None,
        **options: Any,
    ) -> None:
        self.algorithm = algorithm
        self._options = {
            "timeout_s": timeout_s,
            "streams": streams,
            "pattern": pattern,
            "pieces": pieces,
            "shared_memory": shared_memory,
        }
        super().__init__(*args, **options)
        _check_arguments(self.args)
        if self.is_distributed_loading_by_transformers:
            raise ValueError(
                "the model was sharded when it was loaded, and relaxlab's algorithms are for whole "
                "models, one a process: call from_pretrained without a distributed_config"
            )
        if not algorithm.workers_agree and self.args.average_tokens_across_devices:
            LOGGER.info("average_tokens_across_devices becomes False: workers do not agree")
            self.args = copy.copy(self.args)  # the caller's may be for other trainers, too
            self.args.average_tokens_across_devices = False

    def create_accelerator_and_postprocess(self) -> None:
        """Make an accelerator that wraps models in nothing."""
        super().create_accelerator_and_postprocess()
        check_is_data_parallel(self.accelerator)
        prepare_model = type(self.accelerator).prepare_model
        self.accelerator.prepare_model = partial(
            prepare_model, self.accelerator, evaluation_mode=True
        )
        prepare_data_loader: Any = partial(_prepare_data_loader, self.accelerator)
        self.accelerator.prepare_data_loader = prepare_data_loader

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer`'s own; `RuntimeError` where this version of it has prepared otherwise."""
        if not bagua_algos.is_distributed(model):
            raise RuntimeError(
                "this version of transformers prepares training in another way, so that workers "
                "would train apart: install transformers 5.23"
            )
        return super().training_step(model, *args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate or predict by the consensus."""
        with self._consensus():
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the consensus, and for a checkpoint this worker's part beside it."""
        if self._is_training and _internal_call and not self.args.save_only_model:
            own = worker_state(self._trained, self._accelerated)
            own["global_step"] = self.state.global_step
            save_own_file(str(output_dir), self.args.process_index, own)
        with self._consensus():
            super().save_model(output_dir, _internal_call)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> Any:
        model, loader = super()._prepare_for_training(
            max_steps, train_dataloader, resume_from_checkpoint
        )
        optimizer = self._accelerated.optimizer
        check_optimizer(optimizer, self.algorithm)
        find_unused, megabytes = self.args.ddp_find_unused_parameters, self.args.ddp_bucket_cap_mb
        bagua_algos.distribute(
            model,
            optimizer,
            self.algorithm,
            bucket_bytes=DEFAULT_BUCKET_BYTES if megabytes is None else megabytes << 20,
            find_unused_parameters=self.algorithm.workers_agree
            if find_unused is None
            else find_unused,
            grad_scaler=self.accelerator.scaler,
            **self._options,
        )
        if resume_from_checkpoint is not None:
            self._load_own(model, resume_from_checkpoint)
        return model, loader

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        settle(self._trained)
        return super()._finalize_training(*args, **kwargs)

    def _load_own(self, model: nn.Module, folder: str) -> None:
        own = load_own_file(
            folder,
            self.args.process_index,
            self.args.device,
            self.algorithm,
            otherwise="to begin anew with its weights, call from_pretrained and give train no "
            "resume_from_checkpoint",
        )
        if own["global_step"] != self.state.global_step:
            raise ValueError(
                f"a worker's file in {folder} is of step {own['global_step']} in place of "
                f"{self.state.global_step}: {UNLIKE_STEPS}"
            )
        load_worker_state(model, self._accelerated, own)

    @property
    def _trained(self) -> nn.Module:
        assert isinstance(self.model_wrapped, nn.Module)
        return self.model_wrapped  # in nothing, or compiled

    @property
    def _accelerated(self) -> AcceleratedOptimizer:
        assert isinstance(self.optimizer, AcceleratedOptimizer), "Trainer has prepared it"
        return self.optimizer

    @property
    def _is_training(self) -> bool:
        return bagua_algos.is_distributed(self._trained)

    def _consensus(self) -> AbstractContextManager[object]:
        return bagua_algos.consensus(self._trained) if self._is_training else nullcontext()


def _prepare_data_loader(
    accelerator: Accelerator, data_loader: DataLoader[Any], *args: Any, **kwargs: Any
) -> Any:
    check_is_not_dealt(data_loader)
    return type(accelerator).prepare_data_loader(accelerator, data_loader, *args, **kwargs)


def _check_arguments(args: TrainingArguments) -> None:
    refused = {
        "auto_find_batch_size": args.auto_find_batch_size,
        "ddp_broadcast_buffers": args.ddp_broadcast_buffers,
        "ddp_static_graph": args.ddp_static_graph,
        "deepspeed": args.deepspeed,
        "fsdp": args.fsdp,
        "optim": args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO),
    }
    for name, is_given in refused.items():
        if is_given:
            value = getattr(args, name)
            raise ValueError(
                f"RelaxedTrainer does not support {name}={getattr(value, 'value', value)}: "
                "leave it at its default"
            )
