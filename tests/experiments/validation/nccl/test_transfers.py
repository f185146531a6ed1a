"""Records and tables of all-reduces, from seconds that are made up."""

import json

from experiments.validation.nccl.transfers import Transfers, page, read_transfers, table

TRANSFERS = Transfers(
    net="lossy",
    links="tbf",
    rounds=3,
    seconds={
        "own sockets, 1": {4: [4.0, 2.0, 8.0]},
        "bagua_net, 1": {4: [2.0, 2.0, 2.0], 16: [8.0, 8.0, 8.0]},
        "own sockets, 8": {4: [1.0, 1.0, 1.0], 16: [4.0, 4.0, 4.0]},
        "bagua_net, 8": {4: [1.0, 2.0, 4.0], 16: [1.0, 1.0, 1.0]},
    },
    left_out={"own sockets, 1": {16: 16.0, 64: 64.2}, "bagua_net, 1": {64: 32.0}},
)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_goodput_and_what_the_plugin_gains_round_by_round():
    head, _, small, *_ = table(TRANSFERS).splitlines()
    names = ["own sockets, 1", "bagua_net, 1", "times", "own sockets, 8", "bagua_net, 8", "times"]
    assert cells(head) == ["MiB", *names]
    # 4 MiB are 33.55 Mbit. The ratios by round are 2, 1 and 4, whose median is 2.
    assert cells(small)[:4] == ["4", "8.389 (4.194 to 16.78)", "16.78 (16.78 to 16.78)", "2.00"]
    assert cells(small)[6] == "0.50"


def test_a_size_that_was_left_out_says_how_long_it_would_have_taken():
    middle, large = map(cells, table(TRANSFERS).splitlines()[3:])
    assert middle[:2] == ["16", "left out: about 16 s"]
    assert middle[2].startswith("16.78 ")
    assert middle[3] == "-"
    assert large[:4] == ["64", "left out: about 64 s", "left out: about 32 s", "-"]
    assert large[4:] == ["not measured", "not measured", "-"]


def test_a_record_outlives_json():
    assert read_transfers(json.loads(json.dumps(TRANSFERS.record()))) == TRANSFERS


def test_a_page_says_what_shared_a_gpu_and_what_nccl_refused():
    assert "on two GPUs" in page(TRANSFERS)
    shared = Transfers(net="wan", shared_gpu=True)
    assert "on one GPU, on which their kernels take turns" in page(shared)
    assert page(Transfers(net="wan", refused="NCCL refused it")) == "wan: NCCL refused it"
