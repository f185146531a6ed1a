"""What the numbers of a run have to be, whatever its objects are."""

from typing import Any

PRECISIONS = ("float32", "bfloat16", "float16")
"""What matrices are multiplied in; weights and gradients are float32."""

MAX_SEED = 2**32 - 1
"""What every generator takes, those of torch and NumPy alike."""

_FROM_1 = ("workers", "batch_size", "max_steps", "eval_every", "log_every", "bucket_bytes")


def check_numbers(run: Any) -> None:
    """Raise `ValueError` for one that no run can have. `run` is a plan, or the configuration that
    one is made of, which have fields of the same names.
    """
    for name in (*_FROM_1, "accumulate"):
        value = getattr(run, name)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if run.checkpoint_every < 0:
        raise ValueError(f"checkpoint_every must be at least 0, got {run.checkpoint_every}")
    if not 0 <= run.seed <= MAX_SEED:
        raise ValueError(f"seed must be at least 0 and at most {MAX_SEED}, got {run.seed}")
    if run.batch_size % run.accumulate:
        raise ValueError(
            f"accumulate={run.accumulate} micro-batches must divide batch_size={run.batch_size}"
        )
    if run.precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {run.precision}")
    if not run.lr_scale > 0:
        raise ValueError(f"lr_scale must be more than 0, got {run.lr_scale}")
    if run.clip_norm is not None and not run.clip_norm > 0:
        raise ValueError(f"clip_norm must be more than 0 or null, got {run.clip_norm}")
