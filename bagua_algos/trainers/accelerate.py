"""Accelerate: `accelerator = RelaxedAccelerator(LocalSGD(interval=8))`."""

from typing import Any, NoReturn

import torch
from accelerate.accelerator import Accelerator  # pyright: ignore[reportMissingImports]
from accelerate.utils import DistributedType  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bagua_algos
from bagua_algos.communication.patterns import Pattern
from bagua_algos.communication.streams import NumStreams
from bagua_algos.data.sampler import deals_to_workers
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import DEFAULT_BUCKET_BYTES, DEFAULT_TIMEOUT_S
from bagua_algos.engine.script.saves import snapshot
from bagua_algos.trainers.worker_state import (
    UNLIKE_STEPS,
    check_optimizer,
    load_own_file,
    load_worker_state,
    save_own_file,
    settle,
    worker_state,
)

SHARDING = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "megatron_lm_plugin",
    "parallelism_config",
    "torch_tp_plugin",
)


class RelaxedAccelerator(Accelerator):
    """Accelerate's `Accelerator`, with `algorithm` in place of DistributedDataParallel.

    `get_state_dict`, and with it `save_model` and `save_state`, gives the workers' consensus; they
    are collective calls. `save_state` adds `worker_0.pt` and so on, by which `load_state` goes on
    bit for bit. To evaluate, enter `bagua_algos.consensus(model)`;
    `end_training` leaves every worker with the consensus, and a plain model.

    Args:
        algorithm: the relaxation.
        bucket_bytes: see `bagua_algos.distribute`, like the next four.
        timeout_s: seconds.
        find_unused_parameters: whether parameters may be without a gradient on all workers.
        streams: gloo's connections between each two workers; "auto" measures at every start.
        pattern: of gloo's all-reduces, in the same way.
        pieces: whether streams take pieces of large messages; left out: where "auto" has several.
        shared_memory: see `bagua_algos.distribute`.
        options: Accelerate's own.

    Raises:
        ValueError: one process alone, a sharded kind of training, or options for
            DistributedDataParallel.
    """

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
        **options: Any,
    ) -> None:
        for name in SHARDING:
            if options.get(name) is not None:
                raise ValueError(_sharded(name))
        super().__init__(**options)
        check_is_data_parallel(self)
        if self.ddp_handler is not None:
            raise ValueError(
                "DistributedDataParallelKwargs are for DistributedDataParallel: give bucket_bytes "
                "or find_unused_parameters to RelaxedAccelerator instead"
            )
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
        self._candidates: list[nn.Module] = []
        self._trained: nn.Module | None = None
        self._loaded: dict[str, Any] = {}
        self.register_save_state_pre_hook(self._save_own)
        self.register_load_state_pre_hook(self._load_own)

    def prepare_model(
        self,
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        """Prepare the model, and wrap it in nothing."""
        prepared = super().prepare_model(model, device_placement, evaluation_mode=True)
        if not evaluation_mode and all(prepared is not known for known in self._candidates):
            self._candidates.append(prepared)
        return prepared

    def prepare_data_loader(self, data_loader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        """As Accelerate's own; `ValueError` where the loader's sampler deals to workers itself."""
        check_is_not_dealt(data_loader)
        return super().prepare_data_loader(data_loader, *args, **kwargs)

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare all; with an optimizer among them, distribute it and its model.

        Raises `ValueError` for a second optimizer, and one that comes before its model.
        """
        num_optimizers = len(self._optimizers)
        prepared = super().prepare(*args, device_placement=device_placement)
        if len(self._optimizers) > num_optimizers:
            self._distribute()
        return prepared

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """As Accelerate's own; `ValueError` where no optimizer was prepared with the model."""
        if self._trained is None:
            raise ValueError(
                "workers would train apart: prepare() has to be given the model and its optimizer"
            )
        super().backward(loss, **kwargs)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Any:
        """The consensus of the model that is trained. A collective call."""
        if self._trained is None or not _are_same(model, self._trained):
            return super().get_state_dict(model, unwrap)
        with bagua_algos.consensus(self._trained) as spread:
            state = super().get_state_dict(model, unwrap)
            return state if spread else snapshot(state)  # with a spread it is a copy

    def load_state(self, *args: Any, **kwargs: Any) -> None:
        """Take up this worker's own weights, optimizer and algorithm's state, after the rest.

        Raises `ValueError` where this worker's file is missing, or workers' are not of one step.
        """
        super().load_state(*args, **kwargs)
        assert self._trained is not None, "_load_own has looked"
        load_worker_state(self._trained, self._optimizers[0], self._loaded)
        self._loaded = {}

    def join_uneven_inputs(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise `ValueError`: joining is DistributedDataParallel's."""
        raise ValueError(
            "join_uneven_inputs is for DistributedDataParallel: a worker that runs out of batches "
            "before the others calls bagua_algos.empty_backward(model) in place of each backward"
        )

    def free_memory(self, *objects: Any) -> Any:
        """Also end distributed training, as `end_training` does. A collective call."""
        self._settle()
        return super().free_memory(*objects)

    def end_training(self) -> None:
        """Leave every worker with the consensus, and a plain model. A collective call."""
        self._settle()
        super().end_training()

    def _distribute(self) -> None:
        if len(self._optimizers) > 1:
            raise ValueError(
                "RelaxedAccelerator trains by one optimizer: give it all parameters, in groups "
                "where their options differ, or write the loop with bagua_algos.distribute"
            )
        optimizer = self._optimizers[0].optimizer
        check_optimizer(optimizer, self.algorithm)
        its = {p for group in optimizer.param_groups for p in group["params"]}
        models = [m for m in self._candidates if not its.isdisjoint(m.parameters())]
        if len(models) != 1:
            raise ValueError(
                f"the optimizer trains parameters of {len(models)} prepared models: give prepare() "
                "one model, before its optimizer or together with it"
            )
        bagua_algos.distribute(
            models[0], optimizer, self.algorithm, grad_scaler=self.scaler, **self._options
        )
        self._trained = models[0]

    def _settle(self) -> None:
        if self._trained is not None:
            settle(self._trained)
        self._trained = None
        self._candidates.clear()

    def _save_own(self, models: list[nn.Module], states: list[Any], folder: str) -> None:
        if self._trained is not None:
            state = worker_state(self._trained, self._optimizers[0])
            save_own_file(folder, self.process_index, state)

    def _load_own(self, models: list[nn.Module], folder: str) -> None:
        if self._trained is None:
            raise ValueError("load_state() has to come after prepare()")
        self._loaded = load_own_file(
            folder,
            self.process_index,
            self.device,
            self.algorithm,
            otherwise="to begin anew with its weights, load model.safetensors before prepare()",
        )
        own_step = torch.tensor([self._loaded["algorithm"]["step"]], device=self.device)
        steps: Any = self.gather(own_step)
        if len(steps.unique()) > 1:
            raise ValueError(
                f"the workers' files in {folder} are of steps {steps.tolist()}: {UNLIKE_STEPS}"
            )


def check_is_data_parallel(accelerator: Accelerator) -> None:
    """Raise `ValueError` unless every process of `accelerator` holds a whole model of its own."""
    kind = accelerator.distributed_type
    if kind == DistributedType.NO:
        raise ValueError(
            "this process is alone, and an algorithm is for several: start with torchrun or "
            "accelerate launch"
        )
    if not kind.startswith("MULTI_"):
        raise ValueError(_sharded(kind.value))
    if accelerator.parallelism_config is not None:
        raise ValueError(_sharded("parallelism_config"))


def check_is_not_dealt(loader: DataLoader[Any]) -> None:
    """Raise `ValueError` where Accelerate would deal a worker's own examples to all workers."""
    if deals_to_workers(loader):
        raise ValueError(
            "the loader's sampler deals examples to workers itself, and Accelerate would deal each "
            "one's share out again: do not prepare the loader, and call the sampler's set_epoch"
        )


def _sharded(by: str) -> str:
    return (
        f"{by} shards a model, and relaxlab's algorithms are for whole models, one a process: "
        f"leave {by} out of Accelerate's configuration"
    )


def _are_same(model: nn.Module, other: nn.Module) -> bool:
    """Also where one of them is the other one compiled."""
    return getattr(model, "_orig_mod", model) is getattr(other, "_orig_mod", other)
