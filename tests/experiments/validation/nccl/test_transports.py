"""What workers set before NCCL reads it, and what its log must say: without NCCL."""

from pathlib import Path

import pytest

from experiments.real.nccl import connections
from experiments.validation.nccl.transports import NcclTransport, nccl_transports
from host.errors import UserError
from host.gpus import Gpu, Placement

FOLDER = Path("logs")
LINE = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {}/0\n"
ASSIGNED = "host:1:2 [0] NCCL INFO Assigned NET plugin bagua to comm\n"


def pretend(monkeypatch, num_gpus):
    gpus = (Gpu(name="made up", memory_bytes=1),) * num_gpus
    of = "experiments.validation.nccl.transports.placement"
    monkeypatch.setattr(of, lambda n: Placement(num_workers=n, gpus=gpus))


def test_each_number_of_streams_has_own_sockets_and_the_plugin_side_by_side(monkeypatch):
    pretend(monkeypatch, 1)
    names = [transport.name for transport in nccl_transports()]
    assert names == ["own sockets, 1", "bagua_net, 1", "own sockets, 8", "bagua_net, 8"]
    assert all(transport.is_shared for transport in nccl_transports())
    pretend(monkeypatch, 2)
    assert not any(transport.is_shared for transport in nccl_transports())
    pretend(monkeypatch, 0)
    with pytest.raises(UserError, match="no NVIDIA GPU"):
        nccl_transports()


@pytest.mark.parametrize("net_plugin", [None, "bagua"])
@pytest.mark.parametrize("streams", [1, 8])
def test_only_the_transport_differs_between_the_two(streams, net_plugin):
    transport = NcclTransport(streams=streams, net_plugin=net_plugin, is_shared=True)
    chosen = [transport.environment(rank, FOLDER) for rank in (0, 1)]
    # Two hosts to NCCL, which refuses two workers of one host on one GPU.
    assert chosen[0]["NCCL_HOSTID"] != chosen[1]["NCCL_HOSTID"]
    assert {**chosen[0], "NCCL_HOSTID": ""} == {**chosen[1], "NCCL_HOSTID": ""}
    one = chosen[0]
    assert (one["NCCL_MIN_CTAS"], one["NCCL_MAX_CTAS"], one["NCCL_ALGO"]) == ("1", "1", "Ring")
    if net_plugin is None:
        assert one["NCCL_NET"] == "Socket"
        sockets = int(one["NCCL_SOCKET_NTHREADS"]) * int(one["NCCL_NSOCKS_PERTHREAD"])
        assert sockets == streams
        assert "NCCL_NET_PLUGIN" not in one
    else:
        assert one["NCCL_NET"] == "bagua"
        assert one["BAGUA_NET_STREAMS"] == str(streams)
        assert one["BAGUA_NET_CONGESTION"] == "system"
        assert Path(one["NCCL_NET_PLUGIN"]).is_file()


def test_workers_with_a_gpu_each_are_hosts_like_others():
    transport = NcclTransport(streams=1)
    assert "NCCL_HOSTID" not in transport.environment(0, FOLDER)


@pytest.mark.parametrize(
    ("log", "net_plugin", "reason"),
    [
        (LINE.format("NET/bagua"), None, "not NET/Socket alone"),
        (LINE.format("NET/Socket"), "bagua", "does not say that it assigned"),
        (ASSIGNED + LINE.format("NET/Socket"), "bagua", "not NET/bagua alone"),
        (LINE.format("NET/Socket") + LINE.format("SHM/direct"), None, "SHM"),
        ("", None, "not NET/Socket alone"),
    ],
)
def test_a_log_of_another_transport_is_refused(log, net_plugin, reason):
    with pytest.raises(ValueError, match=reason):
        connections(log, net_plugin)


def test_a_transport_reads_the_logs_of_all_its_workers(tmp_path):
    (tmp_path / "nccl.17.log").write_text(ASSIGNED + LINE.format("NET/bagua"))
    NcclTransport(streams=1, net_plugin="bagua").check(tmp_path)
    (tmp_path / "nccl.18.log").write_text(LINE.format("P2P/CUMEM"))
    with pytest.raises(ValueError, match="P2P"):
        NcclTransport(streams=1, net_plugin="bagua").check(tmp_path)
