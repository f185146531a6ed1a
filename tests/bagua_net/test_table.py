"""What NCCL asks of a net plugin, and the traps in it, over loopback."""

import contextlib
import ctypes
import itertools
import os
import socket
import struct
import subprocess
import sys
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p

import pytest

from bagua_net.table import (
    HANDLE_BYTES,
    INTERNAL_ERROR,
    INVALID_USAGE,
    OPTIONAL_COMPLETION,
    REMOTE_ERROR,
    VERSIONS,
    Plugin,
    PluginError,
)
from tests.bagua_net.conftest import room, text
from tests.paths import ROOT

MIB = 1 << 20


def send(link, data, space, size, posted):
    received = link.plugin.irecv(link.receiver, space, posted)
    sent = link.plugin.isend(link.sender, data, size)
    assert received and sent
    assert link.plugin.wait(sent) == size
    return link.plugin.wait(received)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_moves_messages(version, make_plugin, connect):
    plugin = make_plugin(version)
    assert plugin.name == b"bagua"
    assert plugin.num_devices() == 1
    link = connect(plugin)
    data, space = text(100_000), room(100_000)
    assert send(link, data, space, 100_000, 100_000) == 100_000
    assert data.raw == space.raw
    assert (plugin.function("finalize") if version >= 11 else True) is not None
    plugin.finalize()


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_properties(version, make_plugin):
    properties = make_plugin(version).properties()
    assert properties.name == b"lo"
    assert properties.pci_path is None
    assert (properties.pointer_support, properties.most_receives) == (1, 1)
    assert properties.speed_mbit > 0
    with pytest.raises(PluginError) as refused:
        make_plugin(version).properties(1)
    assert refused.value.code == INVALID_USAGE


def test_congestion_control_that_the_kernel_lacks_is_refused_by_init(make_plugin):
    make_plugin(congestion="system")
    with pytest.raises(PluginError) as refused:
        make_plugin(congestion="nosuch")
    assert refused.value.code == INVALID_USAGE


def test_properties_end_where_each_version_ends(make_plugin):
    def read(version, size, offset, kind):
        memory = ctypes.create_string_buffer(b"\xaa" * (size + 8))
        make_plugin(version).call("get_properties", c_int(0), memory)
        assert memory.raw[size : size + 8] == b"\xaa" * 8
        return kind.from_buffer(memory, offset).value

    assert read(8, 64, 44, c_int) == 65536  # maxComms
    assert [read(9, 104, offset, c_int) for offset in (64, 68)] == [1, 0]  # vProps
    assert read(9, 104, 88, c_size_t) == 1 << 40
    assert read(11, 112, 104, c_int) == 1  # maxMultiRequestSize, four devices in vProps
    assert read(12, 128, 104, c_size_t) == 1 << 40  # eight
    assert [read(12, 128, offset, ctypes.c_int16) for offset in (124, 126)] == [-1, -1]


@pytest.mark.parametrize("streams", ["1", "8"])
@pytest.mark.parametrize("split", ["dynamic", "static"])
def test_sizes_and_receives_larger_than_sends(streams, split, make_plugin, connect):
    link = connect(make_plugin(streams=streams, split=split))
    data, space = text(MIB), room(MIB + 300)
    for size, more in itertools.product((0, 1, 5, 1448, 5000, MIB), (0, 200)):
        ctypes.memset(space, 0, len(space))
        assert send(link, data, space, size, size + more) == size
        assert space.raw[: size + 300] == data.raw[:size] + bytes(300)


def test_64_mib(make_plugin, connect):
    link = connect(make_plugin())
    data, space = text(64 * MIB), room(64 * MIB)
    assert send(link, data, space, 64 * MIB, 64 * MIB) == 64 * MIB
    assert data.raw == space.raw


def test_a_send_larger_than_its_receive_fails_both_ends(make_plugin, connect):
    link = connect(make_plugin())
    space = room(200)
    received = link.plugin.irecv(link.receiver, space, 100)
    sent = link.plugin.isend(link.sender, text(MIB), MIB)
    with pytest.raises(PluginError) as failed:
        link.plugin.wait(received)
    assert failed.value.code == INVALID_USAGE
    with pytest.raises(PluginError) as failed:
        link.plugin.wait(sent)
        link.plugin.wait(link.plugin.isend(link.sender, text(1)) or 0)
    assert failed.value.code == REMOTE_ERROR
    assert space.raw == bytes(200)


def test_32_requests_in_flight_and_no_more(make_plugin, connect):
    link = connect(make_plugin())
    spaces = [room(70_000) for _ in range(32)]
    received = [link.plugin.irecv(link.receiver, space) for space in spaces]
    assert all(received)
    assert link.plugin.irecv(link.receiver, room(1)) is None
    texts = [text(70_000) for _ in range(32)]
    sent = [link.plugin.isend(link.sender, data) for data in texts]
    for request in (*reversed(received), *sent):
        assert link.plugin.wait(request) == 70_000
    assert [space.raw for space in spaces] == [data.raw for data in texts]
    again = link.plugin.irecv(link.receiver, room(1))
    assert again
    link.plugin.isend(link.sender, text(1))
    assert link.plugin.wait(again) == 1


def test_sends_wait_for_receives_that_are_posted_later(make_plugin, connect):
    link = connect(make_plugin())
    texts = [text(300_000) for _ in range(8)]
    sent = [link.plugin.isend(link.sender, data) for data in (*texts, room(0))]
    time.sleep(0.05)
    for data in texts:
        space = room(300_000)
        assert link.plugin.wait(link.plugin.irecv(link.receiver, space)) == 300_000
        assert space.raw == data.raw
    for request in sent:
        link.plugin.wait(request)


def test_the_hint_is_overwritten_and_sizes_may_be_left_out(make_plugin, connect):
    link = connect(make_plugin())
    received = link.plugin.irecv(link.receiver, room(8), hint=OPTIONAL_COMPLETION)
    assert received not in (None, OPTIONAL_COMPLETION)
    assert link.plugin.test(received) is None
    link.plugin.isend(link.sender, text(8))
    until_s = time.monotonic() + 20
    while link.plugin.test(received, with_size=False) is None:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    filled = [link.plugin.irecv(link.receiver, room(8)) for _ in range(32)]
    assert all(filled)
    assert link.plugin.irecv(link.receiver, room(8), hint=OPTIONAL_COMPLETION) is None


def test_grouped_receives_and_flushes_are_refused(make_plugin, connect):
    link = connect(make_plugin())
    request = c_void_p(OPTIONAL_COMPLETION)
    function = link.plugin.function("irecv")
    two = (c_void_p * 2)(), (c_size_t * 2)(), (c_int * 2)()
    code = function(c_void_p(link.receiver), c_int(2), *two, None, None, byref(request))
    assert (code, request.value) == (INTERNAL_ERROR, None)
    request = c_void_p(OPTIONAL_COMPLETION)
    flush = link.plugin.function("iflush")
    code = flush(c_void_p(link.receiver), c_int(1), None, None, None, byref(request))
    assert (code, request.value) == (INTERNAL_ERROR, None)


def test_host_memory_alone_is_registered(make_plugin, connect):
    link = connect(make_plugin())
    register = link.plugin.function("register_memory")
    arguments = (c_void_p(link.sender), c_char_p(b"x"), c_size_t(1))
    assert register(*arguments, c_int(1), byref(c_void_p())) == 0
    assert register(*arguments, c_int(2), byref(c_void_p())) == INTERNAL_ERROR


def test_one_listener_serves_many_connections_that_close_in_any_order(make_plugin):
    plugin = make_plugin(streams="2", threads="3")
    before = resources()
    handle, listener = plugin.listen()
    memories = [ctypes.create_string_buffer(handle, HANDLE_BYTES) for _ in range(64)]
    senders, receivers = [None] * 64, []
    until_s = time.monotonic() + 30
    while not all(senders) or len(receivers) < 64:
        assert time.monotonic() < until_s
        for i, memory in enumerate(memories):
            senders[i] = senders[i] or plugin.connect_once(memory)
        if comm := plugin.accept_once(listener):
            receivers.append(comm)
    space = room(10)
    pending = [plugin.irecv(comm, space) for comm in receivers]  # no send ever comes
    assert all(pending)
    assert sum(one.startswith("thread") for one in resources() - before) == 3
    kinds = [("send", comm) for comm in senders] + [("receive", comm) for comm in receivers]
    for kind, comm in [("listen", listener), *kinds[::2], *kinds[1::2]]:
        plugin.close(kind, comm)
    assert not resources() - before


def resources() -> set[str]:
    """Threads and open files of this process; those of earlier tests may end at any time."""
    found = {f"thread {task}" for task in os.listdir("/proc/self/task")}
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder that has just been listed
            found.add(f"file {file}: {os.readlink(f'/proc/self/fd/{file}')}")
    return found


@pytest.fixture
def unanswering():
    """The port of a listener whose queue is full: attempts to connect to it stay attempts."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.05)
        yield server.getsockname()[1]


def test_an_abandoned_attempt_to_connect_ends_with_its_context(make_plugin, unanswering):
    plugin = make_plugin()
    before = resources()
    handle, listener = plugin.listen()
    memory = ctypes.create_string_buffer(handle, HANDLE_BYTES)
    struct.pack_into("<H", memory, 6, unanswering)
    begin_s = time.monotonic()
    for _ in range(100):
        assert plugin.connect_once(memory) is None
        assert plugin.accept_once(listener) is None
    assert time.monotonic() - begin_s < 5
    assert resources() - before
    plugin.close("listen", listener)
    plugin.finalize()
    assert not resources() - before


def test_connecting_where_nobody_listens_fails(make_plugin):
    plugin = make_plugin()
    handle, listener = plugin.listen()
    plugin.close("listen", listener)
    before = resources()
    with pytest.raises(PluginError) as refused:
        plugin.connect(handle)
    assert refused.value.code == REMOTE_ERROR
    assert not resources() - before


def test_ipv6(make_plugin, connect, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_FAMILY", "AF_INET6")
    plugin = make_plugin()
    if not plugin.num_devices():
        pytest.skip("loopback has no IPv6 address here")
    link = connect(plugin)
    assert struct.unpack_from("<H", link.handle, 4)[0] == socket.AF_INET6
    data, space = text(MIB), room(MIB)
    assert send(link, data, space, MIB, MIB) == MIB
    assert data.raw == space.raw


@pytest.mark.parametrize("handle", [bytes(128), b"\xff" * 128, b"BGN1" + bytes(124)])
def test_foreign_handles_are_refused(handle, make_plugin):
    with pytest.raises(PluginError) as refused:
        make_plugin().connect(handle)
    assert refused.value.code == INVALID_USAGE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STREAMS", "0"),
        ("STREAMS", "8.5"),
        ("STREAMS", "8 or 4"),
        ("SPLIT", "even"),
        ("CHUNK_KB", "64k"),
        ("TIMEOUT_S", "-1"),
        ("TIMEOUT_S", "nan"),
        ("TIMEOUT_S", "1e400"),
    ],
)
def test_a_wrong_variable_is_refused_by_init(name, value, library, monkeypatch):
    monkeypatch.setenv(f"BAGUA_NET_{name}", value)
    lines = []
    with pytest.raises(PluginError) as refused:
        Plugin(library, log=lines.append)
    assert refused.value.code == INVALID_USAGE
    assert len(lines) == 1
    assert f"BAGUA_NET_{name} must be" in lines[0]


def test_the_sentence_about_a_wrong_variable_names_the_bounds_exactly(library, monkeypatch):
    monkeypatch.setenv("BAGUA_NET_CHUNK_KB", "64k")
    lines = []
    with pytest.raises(PluginError):
        Plugin(library, log=lines.append)
    assert "BAGUA_NET_CHUNK_KB must be 1 to 1048576, not '64k'." in lines[0]


CHOICES = {
    "NCCL_SOCKET_IFNAME=lo": "lo",
    "NCCL_SOCKET_IFNAME==lo": "lo",
    "NCCL_SOCKET_IFNAME==l": "",
    "NCCL_SOCKET_IFNAME=nothing,lo": "lo",
    "NCCL_SOCKET_IFNAME=lo NCCL_SOCKET_FAMILY=AF_INET": "lo",
}


@pytest.mark.parametrize("words", CHOICES)
def test_the_chosen_interfaces_are_the_devices(words, library):
    assert named(library, words) == CHOICES[words]


def test_without_a_choice_loopback_is_the_last_resort(library):
    others = named(library, "NCCL_SOCKET_IFNAME=^lo").split(",")
    assert "lo" not in others
    expected = ["lo"] if others == [""] else others
    assert named(library, "").split(",") == expected


def named(library, words) -> str:
    program = (
        "import sys; from pathlib import Path; from bagua_net.table import Plugin\n"
        "plugin = Plugin(Path(sys.argv[1]))\n"
        "num = plugin.num_devices()\n"
        "print(*(plugin.properties(d).name.decode() for d in range(num)), sep=',')"
    )
    chosen = dict(word.split("=", 1) for word in words.split())
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_SOCKET")}
    command = [sys.executable, "-c", program, str(library)]
    finished = subprocess.run(
        command, env=kept | chosen, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()
