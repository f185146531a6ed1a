"""Optimizers that treat every element by itself, and those that do not.

Simulated workers' weights are one tensor `[N, ...]`. A norm, a factorization or a line search over
it would mix the workers, silently.
"""

from torch.optim import Optimizer

NOT_ELEMENTWISE = ("LAMB", "LARS", "LBFGS", "Adafactor", "Muon", "Shampoo", "SOAP")


def check_elementwise(optimizer: Optimizer, num_held: int) -> None:
    """Raise `ValueError` where weights of several workers are one tensor to an optimizer that is
    known to look at whole tensors.
    """
    names = {cls.__name__.lower() for cls in type(optimizer).__mro__}
    if num_held > 1 and names & {name.lower() for name in NOT_ELEMENTWISE}:
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole tensors, and {num_held} simulated workers' "
            "weights are one tensor, which it would mix (LAMB: arXiv 1904.00962): choose an "
            "optimizer that treats every element by itself, such as SGD or AdamW, or real workers"
        )
