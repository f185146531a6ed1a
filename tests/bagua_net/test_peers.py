"""Foreign connections, broken peers, and peers that die, stop or cannot be reached any more."""

import ctypes
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from bagua_net.table import HANDLE_BYTES, REMOTE_ERROR, Plugin, PluginError
from host.processes import fork
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links.namespaces import check_permitted
from netsim.proof.temporary_network import run_workers
from tests.bagua_net.conftest import room, text

MIB = 1 << 20
HELLO, WELCOME, CHUNK = 0x48324742, 0x57324742, 0x43324742
TIMEOUT_MS = 60_000  # of every plugin here that says nothing else
DATA, PING = 1, 2


def address_of(handle: bytes) -> tuple[str, int]:
    return "127.0.0.1", struct.unpack_from("<H", handle, 6)[0]


def secrets_of(handle: bytes) -> tuple[bytes, bytes]:
    return handle[24:40], handle[40:56]


def hello(
    handle: bytes, index: int = 0, num_streams: int = 1, timeout_ms: int = TIMEOUT_MS
) -> bytes:
    begin = struct.pack("<IHH", HELLO, index, num_streams)
    return begin + secrets_of(handle)[0] + os.urandom(16) + struct.pack("<I", timeout_ms)


def welcome(answer: bytes, timeout_ms: int = TIMEOUT_MS) -> bytes:
    return struct.pack("<II", WELCOME, timeout_ms) + answer


def header(sequence: int, total: int, offset: int, length: int, kind: int = DATA) -> bytes:
    return struct.pack("<IIQQQQ", CHUNK, kind, sequence, total, offset, length)


@contextmanager
def foreign_receiver(plugin: Plugin) -> Iterator[tuple[int, socket.socket, bytes]]:
    """A sender's comm, the socket to which it has connected, and the answer that it waits for."""
    handle, listener = plugin.listen()
    other = bytearray(handle)
    with socket.create_server(("127.0.0.1", 0)) as server:
        struct.pack_into("<H", other, 6, server.getsockname()[1])
        sender = plugin.connect(bytes(other))
        receiver, _ = server.accept()
    with receiver:
        receiver.settimeout(20)
        yield sender, receiver, secrets_of(handle)[1]
    plugin.close("send", sender)
    plugin.close("listen", listener)


def strangers(handle: bytes, stop: threading.Event) -> None:
    """Port scans, other protocols, half handshakes, wrong secrets: some stay, some go."""
    kept = []
    wrong = bytearray(hello(handle))
    wrong[8] ^= 1
    openings = [b"", b"GET / HTTP/1.1\r\n\r\n", hello(handle)[:7], bytes(wrong), os.urandom(400)]
    openings += [hello(handle, index=2, num_streams=2), hello(handle, num_streams=0)]
    openings += [hello(handle, timeout_ms=0), hello(handle, timeout_ms=2**32 - 1)]
    while not stop.is_set():
        for opening in openings:
            with suppress(OSError):
                stranger = socket.create_connection(address_of(handle), timeout=5)
                stranger.sendall(opening)
                kept.append(stranger)
        for stranger in kept[: len(kept) // 2]:
            stranger.close()
        del kept[: len(kept) // 2]
        time.sleep(0.005)
    for stranger in kept:
        stranger.close()


def test_strangers_at_the_port_do_no_harm(make_plugin, connect):
    link = connect(make_plugin(streams="4"))
    stop = threading.Event()
    thread = threading.Thread(target=strangers, args=(link.handle, stop))
    thread.start()
    try:
        for _ in range(10):
            memory = ctypes.create_string_buffer(link.handle, HANDLE_BYTES)
            sender = receiver = None
            until_s = time.monotonic() + 20
            while not (sender and receiver):
                assert time.monotonic() < until_s
                sender = sender or link.plugin.connect_once(memory)
                receiver = receiver or link.plugin.accept_once(link.listener)
            for comms in ((sender, receiver), (link.sender, link.receiver)):
                data, space = text(MIB), room(MIB)
                received = link.plugin.irecv(comms[1], space)
                link.plugin.wait(link.plugin.isend(comms[0], data))
                assert link.plugin.wait(received) == MIB
                assert data.raw == space.raw
            link.plugin.close("send", sender)
            link.plugin.close("receive", receiver)
    finally:
        stop.set()
        thread.join()


def test_nothing_is_sent_to_who_does_not_know_the_answer(make_plugin):
    plugin = make_plugin(streams="1")
    with foreign_receiver(plugin) as (sender, stranger, _):
        assert stranger.recv(44, socket.MSG_WAITALL)[:4] == struct.pack("<I", HELLO)
        request = plugin.isend(sender, text(1000))
        assert plugin.test(request) is None
        stranger.sendall(welcome(os.urandom(16)))
        with pytest.raises(PluginError) as failed:
            plugin.wait(request)
        assert failed.value.code == REMOTE_ERROR
        assert stranger.recv(1) == b""


def test_a_receiver_beats_as_often_as_the_sender_s_timeout_asks(make_plugin):
    """By its own timeout, 60 s, it would beat every 15 s."""
    plugin = make_plugin()
    handle, listener = plugin.listen()
    with socket.create_connection(address_of(handle), timeout=10) as sender:
        sender.sendall(hello(handle, timeout_ms=400))
        receiver = plugin.accept(listener)
        with sender.makefile("rb") as stream:
            assert stream.read(24) == welcome(secrets_of(handle)[1], TIMEOUT_MS)
            assert stream.read(3) == b"bbb"
    plugin.close("receive", receiver)
    plugin.close("listen", listener)


def test_a_sender_beats_as_often_as_the_receiver_s_timeout_asks(make_plugin):
    """By its own timeout, 60 s, it would beat every 15 s."""
    plugin = make_plugin(streams="1")
    with foreign_receiver(plugin) as (_, receiver, answer):
        receiver.settimeout(10)
        with receiver.makefile("rb") as stream:
            assert stream.read(44)[40:] == struct.pack("<I", TIMEOUT_MS)
            receiver.sendall(welcome(answer, timeout_ms=400))
            assert stream.read(3 * 40) == 3 * header(0, 0, 0, 0, kind=PING)


@pytest.mark.parametrize("timeout_ms", [0, 99, 86_400_001, 2**32 - 1])
def test_a_timeout_that_no_variable_can_have_ends_the_handshake(timeout_ms, make_plugin):
    plugin = make_plugin(streams="1")
    handle, listener = plugin.listen()
    with socket.create_connection(address_of(handle), timeout=20) as stranger:
        stranger.sendall(hello(handle, timeout_ms=timeout_ms))
        assert plugin.accept_once(listener) is None
        assert stranger.recv(1) == b""
    plugin.close("listen", listener)
    with foreign_receiver(plugin) as (sender, receiver, answer):
        request = plugin.isend(sender, text(1000))
        receiver.sendall(welcome(answer, timeout_ms))
        with pytest.raises(PluginError) as failed:
            plugin.wait(request)
        assert failed.value.code == REMOTE_ERROR


def test_chunks_shrink_at_the_end_of_all_that_is_to_be_sent(make_plugin):
    """Four messages are there before the receiver is; one stream takes half of what is left, but no
    more than a message and no less than 32 KiB.
    """
    plugin, kib = make_plugin(streams="1", chunk_kb="1024"), 1024
    with (
        foreign_receiver(plugin) as (sender, receiver, answer),
        receiver.makefile("rb") as stream,
    ):
        stream.read(44)
        requests = [plugin.isend(sender, text(100 * kib)) for _ in range(4)]
        receiver.sendall(welcome(answer))
        chunks = []
        while sum(length for _, length in chunks) < 400 * kib:
            _, _, sequence, _, _, length = struct.unpack("<IIQQQQ", stream.read(40))
            stream.read(length)
            chunks += [(sequence, length)] if length else []
        for request in requests:
            plugin.wait(request)
        whole = [(message, 100 * kib) for message in range(3)]
        assert chunks == [*whole, (3, 50 * kib), (3, 32 * kib), (3, 18 * kib)]


BROKEN = {
    "beyond the end": [header(0, 100, 90, 11)],
    "an offset that overflows": [header(0, 100, 2**64 - 1, 2)],
    "a length that overflows": [header(0, 100, 50, 2**64 - 1)],
    "a message over all bounds": [header(0, 2**63, 0, 10)],
    "more than was posted": [header(0, 5000, 0, 100)],
    "nothing of something": [header(0, 100, 0, 0)],
    "another size": [header(0, 100, 0, 50) + bytes(50) + header(0, 101, 50, 51)],
    "twice the same": [header(0, 100, 0, 60) + bytes(60) + header(0, 100, 0, 60)],
    "the first half twice": [2 * (header(0, 100, 0, 50) + bytes(50))],
    "bytes of what came": [header(0, 99, 33, 66) + bytes(66) + header(0, 99, 1, 33) + bytes(33)],
    "within what came": [header(0, 99, 0, 90) + bytes(90) + header(0, 99, 40, 9) + bytes(9)],
    "no kind": [header(0, 100, 0, 100, kind=3)],
    "a ping with a load": [header(0, 0, 0, 5, kind=PING)],
    "garbage": [bytes(40)],
    "an end amid a chunk": [header(0, 100, 0, 100) + bytes(30)],
    "an end amid a header": [header(0, 100, 0, 100)[:20]],
    "an end amid a message": [header(0, 100, 0, 50) + bytes(50)],
    "a later message alone": [header(7, 100, 0, 100) + bytes(100)],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sender_fails_the_receive(name, make_plugin):
    plugin = make_plugin()
    handle, listener = plugin.listen()
    with socket.create_connection(address_of(handle)) as sender:
        sender.sendall(hello(handle))
        receiver = plugin.accept(listener)
        assert sender.recv(24, socket.MSG_WAITALL)[8:] == secrets_of(handle)[1]
        space = (ctypes.c_char * 1000).from_buffer_copy(b"\xaa" * 1000)
        request = plugin.irecv(receiver, space, 900)
        (sent,) = BROKEN[name]
        sender.sendall(header(0, 0, 0, 0, kind=PING) + sent)
        sender.shutdown(socket.SHUT_WR)
        with pytest.raises(PluginError):
            plugin.wait(request, 20)
        assert space.raw[100:] == b"\xaa" * 900
        with pytest.raises(PluginError):
            plugin.irecv(receiver, space)
    plugin.close("receive", receiver)
    plugin.close("listen", listener)


def test_the_chunks_of_a_message_come_in_any_order(make_plugin):
    plugin = make_plugin()
    handle, listener = plugin.listen()
    with socket.create_connection(address_of(handle)) as sender:
        sender.sendall(hello(handle))
        receiver = plugin.accept(listener)
        data, space = text(70).raw, room(70)
        request = plugin.irecv(receiver, space)
        for offset in (30, 10, 20, 60, 0, 50, 40):  # new ones, and beside one, the other, both
            assert plugin.test(request) is None
            sender.sendall(header(0, 70, offset, 10) + data[offset : offset + 10])
        assert plugin.wait(request) == 70
        assert space.raw == data
    plugin.close("receive", receiver)
    plugin.close("listen", listener)


@pytest.mark.parametrize("first", ["send", "receive"])
def test_a_close_fails_what_the_other_end_waits_for(first, make_plugin):
    plugin = make_plugin()
    handle, listener = plugin.listen()
    comms = {"send": plugin.connect(handle), "receive": plugin.accept(listener)}
    data = room(16 * MIB)
    if first == "receive":  # more than all buffers hold
        request = plugin.isend(comms["send"], data)
    else:
        request = plugin.irecv(comms["receive"], data)
    plugin.close(first, comms.pop(first))
    with pytest.raises(PluginError) as failed:
        plugin.wait(request, 20)
    assert failed.value.code == REMOTE_ERROR
    for kind, comm in comms.items():
        plugin.close(kind, comm)
    plugin.close("listen", listener)


def test_what_was_sent_before_a_close_arrives(make_plugin, connect):
    plugin = make_plugin()
    handle, listener = plugin.listen()
    sender, receiver = plugin.connect(handle), plugin.accept(listener)
    texts = [text(20_000) for _ in range(5)]
    for data in texts:
        plugin.wait(plugin.isend(sender, data))
    plugin.close("send", sender)
    time.sleep(0.1)  # the receiver's kernel knows by now
    for data in texts:
        space = room(20_000)
        assert plugin.wait(plugin.irecv(receiver, space)) == 20_000
        assert space.raw == data.raw
    plugin.close("receive", receiver)
    plugin.close("listen", listener)


@pytest.fixture
def receiver_process(library, monkeypatch):
    """A receiver in a process of its own, which posts 64 MiB again and again: its pid, a comm."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    ours, theirs = socket.socketpair()
    pids, plugins, comms = [], [], []

    def receive() -> int:
        plugin = Plugin(library)
        handle, listener = plugin.listen()
        theirs.sendall(handle)
        comm, space = plugin.accept(listener), room(64 * MIB)
        with suppress(PluginError):
            while True:
                plugin.wait(plugin.irecv(comm, space), pause_s=0.002)
        return 0

    def start(timeout_s: str) -> tuple[int, Plugin, int]:
        monkeypatch.setenv("BAGUA_NET_TIMEOUT_S", timeout_s)
        pids.append(fork(receive))
        plugins.append(Plugin(library))
        comms.append(plugins[0].connect(ours.recv(HANDLE_BYTES)))
        return pids[0], plugins[0], comms[0]

    yield start
    plugins[0].close("send", comms[0])
    plugins[0].finalize()
    os.kill(pids[0], signal.SIGKILL)
    os.waitpid(pids[0], 0)
    ours.close()
    theirs.close()


def send_until_it_fails(plugin, comm, limit_s=20):
    data, until_s = room(64 * MIB), time.monotonic() + limit_s
    with pytest.raises(PluginError) as failed:
        while time.monotonic() < until_s:
            plugin.wait(plugin.isend(comm, data), limit_s)
    assert failed.value.code == REMOTE_ERROR


def test_a_killed_peer_fails_all_requests(receiver_process):
    pid, plugin, comm = receiver_process("30")
    plugin.wait(plugin.isend(comm, text(MIB)))
    os.kill(pid, signal.SIGSTOP)  # else it might have received all before it is killed
    requests = [plugin.isend(comm, room(64 * MIB)) for _ in range(2)]
    os.kill(pid, signal.SIGKILL)
    for request in requests:
        with pytest.raises(PluginError) as failed:
            plugin.wait(request, 20)  # far less than the timeout: the kernel tells
        assert failed.value.code == REMOTE_ERROR


def test_a_peer_that_is_stopped_for_short_is_waited_for(receiver_process):
    pid, plugin, comm = receiver_process("20")
    plugin.wait(plugin.isend(comm, text(MIB)))
    os.kill(pid, signal.SIGSTOP)
    request = plugin.isend(comm, room(64 * MIB))
    time.sleep(0.5)
    assert plugin.test(request) is None
    os.kill(pid, signal.SIGCONT)
    assert plugin.wait(request) == 64 * MIB


def test_a_peer_that_stays_stopped_counts_as_dead(receiver_process):
    pid, plugin, comm = receiver_process("5")
    plugin.wait(plugin.isend(comm, text(MIB)))
    os.kill(pid, signal.SIGSTOP)
    send_until_it_fails(plugin, comm, limit_s=60)


def test_a_receiver_without_receives_is_not_dead(make_plugin, connect):
    plugin = make_plugin(timeout_s="5")
    link = connect(plugin)
    data, space = text(16 * MIB), room(16 * MIB)
    sent = plugin.isend(link.sender, data)
    time.sleep(11)
    received = plugin.irecv(link.receiver, space)
    plugin.wait(sent)
    assert plugin.wait(received) == 16 * MIB
    assert data.raw == space.raw


@pytest.mark.root
def test_a_cut_cable_fails_both_ends_in_time(library):
    """With the clock of the network both ends send and receive; then nothing comes any more."""
    fault = {"worker": 1, "at_s": 2, "for_s": 600}
    condition = NetworkCondition(rate_mbit=200, delay_ms=1, faults=[fault])
    try:
        check_permitted(condition, 2)
    except NamespaceError as error:
        pytest.skip(str(error))
    ends = socket.socketpair()

    def work(hub, rank):
        os.environ |= {"NCCL_SOCKET_IFNAME": "eth0", "BAGUA_NET_TIMEOUT_S": "3"}
        plugin, data, channel = Plugin(library), room(MIB), ends[rank]
        if rank == 0:
            handle, listener = plugin.listen()
            channel.sendall(handle)
            comm, begin = plugin.accept(listener), plugin.irecv
        else:
            comm, begin = plugin.connect(channel.recv(HANDLE_BYTES)), plugin.isend
        hub.start_clock()
        begin_s, num = time.monotonic(), 0
        try:
            while True:
                plugin.wait(begin(comm, data), 60)
                num += 1
        except PluginError as error:
            seconds = time.monotonic() - begin_s
            plugin.close("receive" if rank == 0 else "send", comm)
            return [error.code, num, seconds, time.monotonic() - begin_s - seconds]

    for code, num, seconds, closing_s in run_workers(condition, 2, work).values:
        assert code == REMOTE_ERROR
        assert num > 0
        assert seconds < 60
        assert closing_s < 30
    for end in ends:
        end.close()
