"""Checks all that needs a GPU: `make gpu-check`, or `python -m experiments.gpu_check`.

    versions        of the driver, CUDA, NCCL and CuPy
    tests           those marked gpu
    kernels         python -m kernels.bench --device cuda
    fused optimizer python -m experiments.bench_systems optimizer --device cuda
    shared GPU      two workers on one GPU, by NCCL over a shaped link, traced
    net plugin      the same through bagua_net in place of NCCL's own sockets
    stacked         simulated workers as one batch
    compiled        the kernels beside torch.compile of their references
    NCCL over NET   all-reduces of 1 to 256 MiB by NCCL's own sockets and by bagua_net, with 1 and 8
                    streams, interleaved, over lan_1g, lossy and wan

It takes less than 8 minutes, and NCCL over NET, a part for each network, up to 24 more: every part
has a limit. After each part it writes results/gpu/DEVICE.json and .md, with figures that were
measured now and none else; after --only PART..., DEVICE-PART.json and .md; after --short, which
leaves out NCCL over NET, DEVICE-short.json and .md. Exit codes: 0 all parts passed, 1 one has
failed, 2 there is no GPU, and nothing is written.
"""

import sys

from host import commands
from host.command_line.parser import Parser
from host.conf import checkout
from host.errors import UserError


def main() -> int:
    """Check the first GPU; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.gpu_check"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART", help="such as 'net plugin'"
    )
    parser.add_argument("--short", action="store_true", help="all but NCCL over networks")
    arguments = parser.parse_args()
    if arguments.short and arguments.only:
        parser.error("--short is all parts but three: leave it out, or --only")
    selection = ["short"] if arguments.short else arguments.only
    checkout("gpu_check")
    with commands.importing():  # seconds, once the command line was read
        from experiments.validation.gpu.check import check
        from experiments.validation.gpu.parts import select
        from host.gpus import find_gpus, why_no_gpu
    parts = select(arguments.only)
    if arguments.short:
        parts = [part for part in parts if not part.has_own_time]
    try:
        gpus = find_gpus()
        if gpus:
            return 0 if check(gpus[0], parts, selection=selection) else 1
        reason = why_no_gpu()
    except UserError as error:  # the driver does not answer
        reason = str(error)
    print(f"gpu-check measured nothing, since {reason}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    commands.run(main)
