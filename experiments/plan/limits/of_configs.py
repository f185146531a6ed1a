"""What of a configuration no run can have, by its texts and numbers alone."""

from omegaconf import DictConfig, OmegaConf

from experiments.plan.limits.limit import Limit, is_of, one_of
from experiments.plan.limits.of_classes import (
    LIMITS,
    check_limits,
    check_values,
    get,
    is_part,
    target_of_part,
)
from experiments.plan.limits.of_pairs import (
    AUTO,
    UNKNOWN,
    Parts,
    check_algorithm,
    check_device,
    check_workers,
)
from experiments.plan.limits.of_runs import check_numbers
from experiments.plan.schema import GROUPS
from experiments.tasks.target import ACCURACY, target_of
from netsim.conditions.condition import NetworkCondition

_ALGORITHMS = "bagua_algos.algorithms"
AVERAGES_MODELS = frozenset(
    f"{_ALGORITHMS}.{name}"
    for name in (
        "async_model_average.AsyncModelAverage",
        "choco_sgd.ChocoSGD",
        "decentralized.Decentralized",
        "local_sgd.LocalSGD",
        "low_precision_decentralized.LowPrecisionDecentralized",
        "sgp.SGP",
    )
)
"""Algorithms after whose steps workers need not agree."""

_RUN = {
    "streams": Limit("1 to 16, or auto", lambda value: value == AUTO or _is_stream_count(value)),
    "pattern": one_of("ring", "halving_doubling", "direct", AUTO),
    "device": one_of("cpu", "cuda", None),
}
"""What stands at the top of a configuration and has a choice."""


def check_config(config: DictConfig, net: NetworkCondition) -> None:
    """Raise `ValueError` or `UserError` for what no run on `net` can have.

    Files are looked at by those who read them.
    """
    for group in GROUPS:
        if is_part(config[group]):
            check_limits(config[group], group)
    _check_names(config.names)
    check_values(config, _RUN)
    check_numbers(config)
    if not is_part(config.target):
        raise ValueError(f"target has metrics: give one, as target.loss=2, got {config.target}")
    _check_target(config)
    _check_partition(config.data)
    parts = _parts(config, net)
    if config.device is not None:
        check_device(parts.process_group, config.device)
    check_workers(config, parts)
    check_algorithm(config, parts)
    _check_settings_of_algorithm(config)


def _check_names(names: DictConfig) -> None:
    """Raise `ValueError` for a name that no record could be told apart by."""
    for group, name in names.items():
        if not str(name).strip():
            raise ValueError(f"names.{group} is empty: give it a name, or leave it out")


def _parts(config: DictConfig, net: NetworkCondition) -> Parts:
    """What the parts of `config` are known to be; as if all were well where nothing is known."""
    algo, target = config.algo, target_of_part(config.algo)
    is_of_torch = target == "experiments.training.torch_ddp.TorchDDP"
    return Parts(
        process_group=get(config.backend, "process_group", UNKNOWN),
        has_nodes=net.nodes is not None,
        has_weights=get(config.data, "sizes", "equal") != "equal",
        needs_nodes="hierarchical" in LIMITS.get(target, {}) and bool(get(algo, "hierarchical")),
        is_simulatable=not is_of_torch,
        is_resumable=not (is_of_torch and get(algo, "comm_hook_state") is not None),
        may_have_streams=not (is_of_torch and get(algo, "comm_hook") is not None),
        uses_background=target == f"{_ALGORITHMS}.async_model_average.AsyncModelAverage",
        workers_agree=target not in AVERAGES_MODELS,
    )


def _check_target(config: DictConfig) -> None:
    """Raise `ValueError` for a target that cannot be, and for two. A task's own accuracy, which
    `target_accuracy` follows unless it is given, gives way to another metric.
    """
    target = target_of(config.target_accuracy, dict(config.target))
    is_given = not OmegaConf.is_interpolation(config, "target_accuracy")
    if is_given and config.target_accuracy is not None and target.metric != ACCURACY:
        raise ValueError(
            f"a run has one target, but got target_accuracy and target.{target.metric}: leave one, "
            "or write target_accuracy=null"
        )


def _check_partition(data: DictConfig) -> None:
    """Raise as the class that shares examples out, which needs NumPy."""
    if target_of_part(data) != "experiments.tasks.samplers.Loading":
        return
    alpha = get(data, "alpha")
    kind, sizes = get(data, "partition", "iid"), get(data, "sizes", "equal")
    if (kind, alpha, sizes) == ("iid", None, "equal"):
        return
    from experiments.tasks.partitions import Partition

    partition = Partition(kind=kind, alpha=alpha, sizes=sizes)
    sampler = target_of_part(get(data, "sampler"))
    partition.check_sampler(goes_by_length=sampler == "experiments.tasks.samplers.Balanced")


def _check_settings_of_algorithm(config: DictConfig) -> None:
    """Raise `ValueError` for settings of a packaged algorithm that do not go together, or that do
    not fit the optimizer or the number of workers.
    """
    algo, optim, target = config.algo, config.optim, target_of_part(config.algo)
    name, optimizer = config.names.algo, config.names.optim
    is_torchs = target_of_part(optim).startswith("torch.optim.")
    is_adam = target_of_part(optim).rpartition(".")[2] in ("Adam", "AdamW")
    if target == f"{_ALGORITHMS}.qadam.QAdam" and is_torchs and not is_adam:
        raise ValueError(
            f"algo={name} continues torch.optim.Adam or AdamW, got optim={optimizer}: take "
            "optim=adam or optim=adamw"
        )
    if target == f"{_ALGORITHMS}.top_k.TopK" and get(algo, "momentum"):
        if not get(algo, "error_feedback", True):
            raise ValueError(
                f"algo.momentum={algo.momentum} accumulates what was not sent (arXiv 1712.01887, "
                "section 3.2): leave algo.error_feedback=true, or algo.momentum=0"
            )
        if is_torchs and get(optim, "momentum"):
            raise ValueError(
                f"algo.momentum={algo.momentum} is kept by algo={name} itself, and a gradient "
                f"would gain the optimizer's {optim.momentum}, too: give optim.momentum=0"
            )
    if target == f"{_ALGORITHMS}.local_sgd.LocalSGD":
        _check_outer(algo)
    is_shift_one = (
        target_of_part(get(algo, "topology")) == "bagua_algos.communication.topology.ShiftOne"
    )
    if is_shift_one and config.workers % 2 and not get(algo, "hierarchical"):
        raise ValueError(
            f"algo.topology=shift_one pairs all workers: give workers an even number, not "
            f"{config.workers}"
        )


def _check_outer(algo: DictConfig) -> None:
    has_compressor = get(algo, "compressor") is not None
    if has_compressor and get(algo, "outer") is None:
        raise ValueError(
            "algo.compressor is of the outer optimizer's gradient, and there is none: take "
            "algo=diloco_int8, or algo.compressor=null"
        )
    if get(algo, "error_feedback") and not has_compressor:
        raise ValueError(
            "algo.error_feedback=true is of a compressor, and there is none: leave it false, or "
            "take algo=diloco_int8"
        )


def _is_stream_count(value: object) -> bool:
    return is_of({int}, value) and value in range(1, 17)
