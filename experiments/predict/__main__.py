"""Predicts step time and throughput of models too large to train here, without weights:

    python -m experiments.predict model=vgg16 +algo=bytegrad net=dc_10g nodes=16x8 device=v100

`model` is a file of `experiments/predict/models`, or any other by `model._target_` and its
arguments; `tokens=1024`, `image=3x224x224` or `features=784` say what one example is. `device` is a
file of `experiments/predict/devices`, or a YAML file like those. `nodes=16x8` is 16 nodes of 8
workers; `nic_gbit`, `rails` and `inside` are of their links. All else is as for
`python -m experiments`, of which algo, net, optim, workers, batch_size, bucket_bytes, precision and
max_steps count. Workers are alike and compute at one pace. Kernels of communication take nothing
from those of compute.
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
