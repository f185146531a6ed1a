"""Parameters that no worker has used in a step: their gradients stay None, as in plain torch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bagua_algos.engine.backward import is_any
from bagua_algos.engine.bucket import Bucket
from kernels.upload import upload


def drop_unused_(
    buckets: Sequence[Bucket],
    unused_here: Sequence[nn.Parameter],
    average_: Callable[[Tensor], None],
    *,
    keeps_unsent: bool,
) -> None:
    """Leave no gradient to parameters that no worker has used; `average_` takes `[w, p]` of all
    workers. Where an algorithm `keeps_unsent` gradients of earlier steps, these may have come now.
    """
    parameters = [p for bucket in buckets for p in bucket.parameters]
    idle = set(unused_here)
    used = torch.tensor([p not in idle for p in parameters], dtype=torch.float32, device="cpu")
    weights = buckets[0].weights
    used_wp = upload(used, weights.device).repeat(len(weights), 1)
    average_(used_wp)
    for parameter, share in zip(parameters, used_wp[0].tolist(), strict=True):
        if share == 0 and not (keeps_unsent and is_any(parameter.grad)):
            parameter.grad = None
