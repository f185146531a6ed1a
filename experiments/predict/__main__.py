"""Step time and throughput of models too large to train here, without weights:

    python -m experiments.predict model=vgg16 +algo=bytegrad net=dc_10g workers=128 profile=v100

`model` is one of `experiments.predict.shapes`, `profile` one of `experiments/predict/devices`; all
else is as for `python -m experiments`, of which algo, net, optim, workers, batch_size, bucket_bytes
and max_steps count. Workers are alike and compute at one pace. Kernels of communication take
nothing from those of compute.
"""

import sys

from experiments.predict.predict import case_of, describe, predict
from host import commands
from host.errors import UserError


def main() -> int:
    """The command line."""
    if not sys.argv[1:] or {"-h", "--help"} & set(sys.argv[1:]):
        print(commands.as_called(__doc__).strip())
        return 0
    try:
        case = case_of(sys.argv[1:])
        print(describe(case, predict(case)))
    except ValueError as error:
        raise UserError(str(error)) from error
    return 0


if __name__ == "__main__":
    commands.run(main)
