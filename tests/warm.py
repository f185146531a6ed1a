"""What a training imports late, which takes seconds. A process that is forked many times calls
`before_forks` once.
"""

import gc
import importlib

LATE = (
    "torch._dynamo",  # every optimizer of torch imports it, and every sharded model
    *("kernels.fp8.cpu", "kernels.minmax_uint8.cpu", "kernels.qsgd.cpu", "kernels.sign_scale.cpu"),
)


def before_forks() -> None:
    """Import it. A fork that ends looks for garbage; not in what it has inherited, which takes a
    second.
    """
    for module in LATE:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
