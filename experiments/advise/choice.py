"""Which algorithms a command line asks for, and what it says of all of them.

A mistake that needs no torch to be seen is told before anything imports torch, which takes seconds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from omegaconf import DictConfig

from experiments.plan.compose import compose_config
from experiments.plan.limits.of_targets import has_target
from experiments.plan.messages import choices
from experiments.plan.overrides import Word, read_overrides, read_word, values_of
from experiments.plan.part import check_start, make_part
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition

NUM_REHEARSALS = 3
"""Of each algorithm, unless told otherwise."""

NOT_SIMULATED = "times are predicted by simulation: leave out backend=..."


class Choice(NamedTuple):
    """The algorithms that a command line asks for, and its other overrides."""

    algos: list[str]
    are_named: bool
    """One by one: all of them must work, where those of a glob may be left out."""
    others: list[str]

    @property
    def net(self) -> list[str]:
        """Its overrides of `net`."""
        return [text for text in self.others if read_word(text).is_of("net")]

    def over(self, net: Sequence[str]) -> "Choice":
        """The same with these overrides of `net`, and no other ones."""
        kept = [text for text in self.others if text not in self.net]
        return self._replace(others=[*kept, *net])


class NamedNetwork(NamedTuple):
    """A condition, and what the user calls it."""

    name: str
    condition: NetworkCondition


def choose(overrides: Sequence[str], num_seeds: int = 1) -> Choice:
    """As `read_choice`; raises as `check_choice`, too."""
    choice = read_choice(overrides, num_seeds)
    check_choice(choice)
    return choice


def read_choice(overrides: Sequence[str], num_seeds: int = 1) -> Choice:
    """The algorithms of `overrides`: algo=a,b or algo=glob(...); without, all there are.

    Raises `UserError` for what cannot be parsed, for several choices of anything else, and for
    fewer than one seed.
    """
    if num_seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {num_seeds}")
    algos, are_named, others = choices("algo"), False, []
    for word in read_overrides(overrides):
        if word.key == "algo":
            algos, are_named = _names(word), not word.is_pattern
        elif word.has_several:
            raise UserError(f"{word.text} has several values: only algo may have them, give one")
        else:
            others.append(word.text)
    return Choice(algos, are_named, others)


def check_choice(choice: Choice) -> None:
    """Raise `UserError` for what no simulated run can have, whatever the algorithm is."""
    if choice.are_named:
        for algo in choice.algos:
            _check(composed(algo, choice.others))
    else:  # fields of algorithms are of some of them alone
        others = [text for text in choice.others if not _is_of_algo(text)]
        _check(composed("allreduce", others))


def _check(config: DictConfig) -> None:
    if "process_group" in config.backend and config.backend.process_group is not None:
        raise UserError(NOT_SIMULATED)
    check_start(config)


def read_network(words: Sequence[str]) -> NamedNetwork:
    """That of overrides of `net` alone. Raises `UserError` for others."""
    for word in words:
        if not read_word(word).is_of("net"):
            raise UserError(f"--on takes overrides of net, such as net=lan_1g, got {word}")
    config = composed("allreduce", words)
    return NamedNetwork(called(config.names.net, words), make_part(config.net, "net"))


def called(name: str, overrides: Sequence[str]) -> str:
    """Such as "slow_tcp with rate_mbit=30, delay_ms=5"."""
    words = [word for word in map(read_word, overrides) if word.key.startswith("net.")]
    changes = [f"{word.key.removeprefix('net.')}={word.value}" for word in words]
    return f"{name} with {', '.join(changes)}" if changes else name


def composed(algo: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration of one algorithm; a run stops at the target, if there is one, unless
    `overrides` want it to go on. Raises `UserError` for an override that does not fit.
    """
    backend = [] if "backend" in values_of(overrides) else ["backend=sim"]
    config = compose_config([f"algo={algo}", *backend, *overrides])
    if "stop_at_target" not in values_of(overrides):
        config.stop_at_target = has_target(config)
    return config


def _is_of_algo(text: str) -> bool:
    return read_word(text).is_of("algo")


def _names(word: Word) -> list[str]:
    names = word.chosen(choices("algo"))
    if not any(names):
        raise UserError(f"{word.text} matches none of {', '.join(choices('algo'))}")
    return names
