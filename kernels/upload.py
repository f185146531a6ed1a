"""Numbers from the host to where the tensors are."""

import torch
from torch import Tensor


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """`x`, which is on the CPU, on `device`. The host does not wait: a GPU reads it from a pinned
    copy, which torch keeps until it has been read.
    """
    if torch.device(device).type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)
