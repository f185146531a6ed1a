from itertools import product

import pytest

from bagua_algos.communication.pieces import Pieces
from experiments.commands.benches import bench_systems
from experiments.validation.streams import bench_pieces
from experiments.validation.streams.bench_pieces import OPERATIONS, SIZES, WAYS, table
from host.errors import Failure, UserError


class Wrong(Pieces):
    """One byte is another one."""

    def send_and_receive(self, outgoing, incoming):
        super().send_and_receive(outgoing, incoming)
        next(iter(incoming.values())).view(-1)[0] += 1


def test_the_table_has_a_row_an_operation_and_size():
    cases = list(product(OPERATIONS, SIZES, WAYS))
    seconds = {case: [0.3, 0.1 + 0.01 * i, 0.05] for i, case in enumerate(cases)}
    rows = table({"wan": seconds, "lossy": seconds}).splitlines()
    assert len(rows) == 2 + 2 * len(OPERATIONS) * len(SIZES)
    assert rows[2].startswith("| wan | exchange | 200 | 100 (50 to 300) | 110 (50 to 300) |")
    assert rows[-1].startswith("| lossy | all-to-all | 1,600 | 300 (50 to 380) |")


@pytest.mark.root
def test_every_way_is_timed_over_each_network(monkeypatch, capsys):
    words = ["bench_systems", "pieces", "--repeats", "1", "--nets", "none"]
    monkeypatch.setattr("sys.argv", words)
    assert bench_systems.main() == 0
    printed = capsys.readouterr().out
    assert "torch" in printed and "1 round" in printed
    assert printed.count("| none | exchange |") == len(SIZES)
    assert printed.count("| none | all-to-all |") == len(SIZES)


@pytest.mark.root
def test_a_way_that_loses_a_byte_is_refused(monkeypatch):
    monkeypatch.setattr(bench_pieces, "Pieces", Wrong)
    monkeypatch.setattr(bench_pieces, "SIZES", (400_000,))
    ways = {name: WAYS[name] for name in ("equal parts", "pieces of 64 kB")}
    monkeypatch.setattr(bench_pieces, "WAYS", ways)
    with pytest.raises(Failure, match="none: not all that was sent has arrived by pieces of 64 kB"):
        bench_pieces.measure("none", 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["piece"], "there is no system piece: choose of"),
        (["pieces", "--nets", "nowhere"], "--nets cannot be 'nowhere': choose "),
        (["pieces", "--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, sentence, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench_systems", *words])
    with pytest.raises(UserError, match=sentence):
        bench_systems.main()
