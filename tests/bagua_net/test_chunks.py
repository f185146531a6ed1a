"""How much a stream takes at once; `checks/exercise.cpp` has the rule, this the sockets."""

import pytest

from bagua_net.cases import _open_sockets, _slow_one
from bagua_net.table import Plugin
from tests.bagua_net.conftest import room, text


@pytest.mark.parametrize(("asked", "chunk_kb"), [({}, 32), ({"BAGUA_NET_CHUNK_KB": "256"}, 256)])
def test_a_slow_stream_takes_little_unless_it_is_told_to(library, monkeypatch, asked, chunk_kb):
    lines: list[str] = []
    variables = {"NCCL_SOCKET_IFNAME": "lo", "BAGUA_NET_STREAMS": "1", **asked}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plugin = Plugin(library, log=lines.append)
    handle, listener = plugin.listen()
    before = _open_sockets()
    sender = plugin.connect(handle)
    _slow_one(_open_sockets() - before, mbit=24)  # 32 KiB take 11 ms
    receiver = plugin.accept(listener)
    data, space = text(4 << 20), room(4 << 20)
    received, sent = plugin.irecv(receiver, space), plugin.isend(sender, data)
    assert received and sent
    assert plugin.wait(sent) == plugin.wait(received) == 4 << 20
    assert data.raw == space.raw
    plugin.close("send", sender)
    plugin.close("receive", receiver)
    plugin.close("listen", listener)
    plugin.finalize()
    said = [line for line in lines if line.startswith("closed; chunks")]
    assert [line.rpartition("by stream: ")[2] for line in said] == [str(chunk_kb)]
