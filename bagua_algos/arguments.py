"""What `distribute` is given, looked at before anything is started."""

import threading
from numbers import Real

from bagua_algos.communication.process_group import is_process_group
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.settings import check_object, shown

_OF_COMMUNICATORS = ("all_reduce_mean_", "broadcast_", "all_gather", "exchange", "duplicate")
"""Methods by which one is told from what is none; it has more."""


def check_algorithm(algorithm: object) -> None:
    """Raise `ValueError` for an algorithm's class or name, or a function that makes one."""
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm must be an object such as AllReduce(), got {shown(algorithm)}")


def check_communicator(communicator: object) -> None:
    """Raise `ValueError` for one of torch's process groups, and whatever else is none."""
    if is_process_group(communicator):
        raise ValueError(
            "communicator is one of torch's process groups: give ProcessGroupCommunicator(group)"
        )
    if communicator is not None:
        like = "ProcessGroupCommunicator(group)"
        check_object("communicator", communicator, like, _OF_COMMUNICATORS)


def check_limits(timeout_s: object, bucket_bytes: object) -> None:
    """Raise `ValueError` for a time or a size that is no number, or too small."""
    if not isinstance(timeout_s, Real) or not 0 < float(timeout_s) <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"timeout_s must be a number of seconds, more than 0 and finite, got {timeout_s!r}"
        )
    if not isinstance(bucket_bytes, Real) or not float(bucket_bytes) >= 1:
        raise ValueError(f"bucket_bytes must be a number of at least 1, got {bucket_bytes!r}")


def check_scaler(grad_scaler: object) -> None:
    """Raise `ValueError` for what scales no loss."""
    if grad_scaler is not None:
        check_object("grad_scaler", grad_scaler, "torch.amp.GradScaler()", ["is_enabled", "scale"])
