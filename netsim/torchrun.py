"""A torchrun command for all workers, as what each of them runs: a torchrun of one process."""

import os
import re
from collections.abc import Collection, Mapping
from itertools import pairwise

PORT = 29_500

FLAGS = frozenset(
    [
        *("-h", "--help", "-m", "--module", "--no-python", "--run-path"),
        *("--standalone", "--virtual-local-rank", "--use-env"),
    ]
)
"""The options of torchrun and its older module that have no value; every other one has."""

_MEETING = (
    *("--standalone", "--rdzv-backend", "--rdzv-endpoint", "--node-rank"),
    *("--master-addr", "--master-port", "--local-addr"),
)
"""The options by which torchruns find each other."""

_MODULES = ("torch.distributed.run", "torch.distributed.launch")

_SHELLS = frozenset(["sh", "bash", "dash", "zsh"])
_WRAPPERS = frozenset(
    [
        *("chrt", "env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "sudo"),
        *("taskset", "time", "timeout", "conda", "hatch", "pdm", "pipenv", "pixi", "poetry", "uv"),
    ]
)
"""Programs that run the command among their words."""
_SCRIPTS = (".py", ".sh")


def of_one_node(command: list[str], rank: int, addresses: list[str]) -> list[str]:
    """Turn a torchrun command for all workers into one worker's: a node of one process. Any other
    command stays as it is.

    Raises:
        ValueError: if it is to start another number of processes than there are workers, says
            itself how the nodes find each other, or stands behind another command.
    """
    begin = _first_option(command)
    if begin is None:
        _check_other(command)
        return command
    options, num_words = _options(command[begin:])
    _check(options, len(addresses))
    node = f"--nnodes={len(addresses)} --node-rank={rank} --nproc-per-node=1"
    meeting = f"--master-addr={addresses[0]} --master-port={PORT} --local-addr={addresses[rank]}"
    script = begin + num_words  # of two values for an option, the later one counts
    return [*command[:script], *node.split(), *meeting.split(), *command[script:]]


def without_meeting(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what torchrun takes from it for the options by which torchruns find
    each other: the command line of each node has them.
    """
    names = {f"PET_{option[2:].replace('-', '_').upper()}" for option in _MEETING}
    return {name: value for name, value in environment.items() if name not in names}


def _first_option(command: list[str]) -> int | None:
    """The place behind `torchrun`, or `python -m torch.distributed.run`; None: it is neither."""
    if _is_torchrun(command[0]):
        return 1
    if not os.path.basename(command[0]).startswith("python"):
        return None
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] != "-m":
        place += 2 if command[place] in ("-W", "-X") else 1
    program = command[place : place + 2]
    if program[:1] == ["-m"]:
        return place + 2 if program[1:] and program[1] in _MODULES else None
    return place + 1 if program and _is_torchrun(program[0]) else None


def _is_torchrun(word: str) -> bool:
    return "=" not in word and os.path.basename(word) == "torchrun"


def _check_other(command: list[str]) -> None:
    """Raise `ValueError` where the command starts torchrun itself, as `chrt -b 0 torchrun` and
    `sh -c "torchrun ..."` do: each worker would start all processes of a training of its own.
    """
    if _starts_torchrun(command):
        raise ValueError(
            f"torchrun stands behind {command[0]}, where it cannot be told of the other workers: "
            "begin the command behind -- with torchrun, and start netsim itself as you would it."
        )


def _starts_torchrun(words: list[str]) -> bool:
    """As far as words tell: those of a script, and of a program that is named by a path, are its
    own; so is what stands behind an option, unless the program is known to run others.
    """
    is_wrapper = os.path.basename(words[0]) in _WRAPPERS
    for place, word in enumerate(words):
        name = os.path.basename(word)
        if name in _SHELLS:
            return any(map(_starts_torchrun, _commands_of_shell(words[place + 1 :])))
        is_value = not is_wrapper and place > 0 and words[place - 1].startswith("-")
        if _first_option(words[place:]) is not None and not is_value:
            return True
        is_own = place == 0 and "/" in word and not is_wrapper
        if is_own or word.endswith(_SCRIPTS) or name.startswith("python"):
            return False
    return False


def _commands_of_shell(words: list[str]) -> list[list[str]]:
    """Those of what stands behind -c, or -lc; none of a script."""
    texts = [text for option, text in pairwise(words) if re.fullmatch("-[a-z]*c", option)]
    commands = [command.split() for text in texts[:1] for command in re.split("[;&|\n]+", text)]
    return [command for command in commands if command]


def _options(words: list[str]) -> tuple[dict[str, str], int]:
    """torchrun's own options with their values, and how many words they are: those before the
    script, whose options are its own.
    """
    options: dict[str, str] = {}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        option, has_value, value = words[place].partition("=")
        place += 1
        option = "--" + option[2:].replace("_", "-") if option.startswith("--") else option
        is_joined = not option.startswith("--") and len(option) > 2  # as -r3
        if not (has_value or is_joined or _is_one_of(FLAGS, option)):
            value = words[place] if place < len(words) else ""
            place += 1
        options[option] = value
    return options, min(place, len(words))


def _check(options: Mapping[str, str], num_workers: int) -> None:
    for option, value in options.items():
        is_several = _is_one_of(["--nnodes"], option) and value not in ("1", "1:1")
        if is_several or _is_one_of(_MEETING, option):
            raise ValueError(
                f"torchrun has {' '.join([option, value]).strip()}, and each worker is a node here "
                "that is told how to find the others: leave it out."
            )
        if _is_one_of(["--nproc-per-node"], option) and value != str(num_workers):
            raise ValueError(
                f"torchrun is to start {value} processes for {num_workers} workers: choose "
                f"--nproc-per-node {num_workers}, or workers={value}."
            )


def _is_one_of(names: Collection[str], option: str) -> bool:
    """Whether `option` is one of `names`, or its beginning: torchrun takes what is no other's."""
    if not option.startswith("--"):
        return option in names
    return any(name.startswith(option) for name in names)
