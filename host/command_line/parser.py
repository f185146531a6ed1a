"""The options of a command: argparse's, whose complaints are one sentence each."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection
from typing import Any, NoReturn

from host.errors import UserError
from host.words import listed

_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Raises `UserError` where argparse would print its usage and end the process. Options have to
    be written out: `--exec` is not taken for `--execute`.

    `keys` are those of a command that takes KEY=VALUE, which some write as options.
    """

    keys: Collection[str] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        """Refuse what the command line asks for, in a sentence."""
        raise UserError(self._sentence(message))

    def _sentence(self, message: str) -> str:
        """argparse's message as one that says what to do; what is none of argparse's stays."""
        if match := re.match(r"the following arguments are required: (.*)", message):
            names = match[1].split(", ")
            verb = "is" if len(names) == 1 else "are"
            return f"{listed(names)} {verb} missing: {self._help()}"
        if match := re.match(r"unrecognized arguments: (.*)", message):
            return self._unknown(match[1].split())
        if match := re.match(r"argument ([^\s:/]+)\S*: (.*)", message):
            return self._wrong(match[1], match[2])
        return message

    def _unknown(self, words: list[str]) -> str:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"{words[0]!r} is a word too many: {self._help()}"
        if (key := options[0].lstrip("-")) in self.keys:
            return f"there is no option {options[0]}: write {key}=VALUE"
        known = list(self._option_string_actions)
        near = difflib.get_close_matches(options[0], known, 1)
        hint = f"did you mean {near[0]}?" if near else self._help()
        return f"there is no option {options[0]}: {hint}"

    def _wrong(self, name: str, what: str) -> str:
        """Of the value that is given to `name`."""
        if match := re.match(r"invalid (int|float) value: (.*)", what):
            return f"{name} takes {_KINDS[match[1]]}, not {match[2]}"
        if match := re.match(r"invalid choice: (.*) \(choose from (.*)\)", what):
            there_are = match[2].replace("'", "")
            return f"{name} cannot be {match[1]}: choose {there_are}"
        if what.startswith("expected "):
            return f"{name} lacks a value: {self._help()}"
        if match := re.match(r"not allowed with argument (\S+)", what):
            return f"{name} and {match[1]} exclude each other: leave one of them out"
        if match := re.match(r"ignored explicit argument (.*)", what):
            return f"{name} takes no value, but got {match[1]}"
        return f"{name}: {what}"

    def _help(self) -> str:
        return f"{self.prog} --help says what there is"
