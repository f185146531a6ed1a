"""What is wrong with a command's options is one sentence."""

import pytest

from host.command_line.parser import Parser
from host.errors import UserError


def parser():
    own = Parser(prog="relaxlab thing")
    own.add_argument("dir", metavar="DIR")
    own.add_argument("--seeds", type=int)
    own.add_argument("--rate", "-r", type=float)
    own.add_argument("--net", choices=["lan", "wan"])
    only = own.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true")
    only.add_argument("--limit", action="store_true")
    return own


HELP = "relaxlab thing --help says what there is"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", f"DIR is missing: {HELP}"),
        ("a b", f"'b' is a word too many: {HELP}"),
        ("a --sedes 3", "there is no option --sedes: did you mean --seeds?"),
        ("a --zzz", f"there is no option --zzz: {HELP}"),
        ("a --seeds three", "--seeds takes a whole number, not 'three'"),
        ("a -r 1e", "--rate takes a number, not '1e'"),
        ("a --seeds", f"--seeds lacks a value: {HELP}"),
        ("a --net LAN", "--net cannot be 'LAN': choose lan, wan"),
        ("a --li", "there is no option --li: did you mean --list?"),
        ("a --list --limit", "--limit and --list exclude each other: leave one of them out"),
        ("a --list=3", "--list takes no value, but got '3'"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, sentence, capsys):
    with pytest.raises(UserError) as error:
        parser().parse_args(words.split())
    assert str(error.value) == sentence
    assert capsys.readouterr() == ("", "")


def test_a_key_that_is_written_as_an_option_is_told_so():
    own = parser()
    own.keys = ("workers",)
    with pytest.raises(UserError, match=r"^there is no option --workers: write workers=VALUE$"):
        own.parse_args(["a", "--workers", "2"])


def test_a_command_of_a_command_speaks_so_too():
    own = Parser(prog="relaxlab thing")
    of_command = own.add_subparsers(dest="command", required=True)
    of_command.add_parser("draw").add_argument("--out", required=True)
    with pytest.raises(UserError, match=r"^command is missing: relaxlab thing --help says"):
        own.parse_args([])
    with pytest.raises(UserError, match=r"^--out is missing: relaxlab thing draw --help says"):
        own.parse_args(["draw"])
    with pytest.raises(UserError, match=r"^command cannot be 'drew': choose draw$"):
        own.parse_args(["drew"])


def test_what_a_command_says_of_its_own_options_stays():
    with pytest.raises(UserError, match=r"^--seeds must be at least 1, got 0$"):
        parser().error("--seeds must be at least 1, got 0")
