"""The plugin's library, and connections of it over loopback within this process."""

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from bagua_net.library import build
from bagua_net.table import Plugin


@pytest.fixture(scope="session")
def library():
    return build()


@dataclass
class Link:
    """Both ends of one connection."""

    plugin: Plugin
    listener: int
    handle: bytes
    sender: int
    receiver: int

    def close(self) -> None:
        self.plugin.close("send", self.sender)
        self.plugin.close("receive", self.receiver)
        self.plugin.close("listen", self.listener)


def text(size: int) -> ctypes.Array:
    """Bytes that differ from place to place, and from one call to the next."""
    return (ctypes.c_char * max(size, 1)).from_buffer_copy(os.urandom(max(size, 1)))


def room(size: int) -> ctypes.Array:
    return (ctypes.c_char * max(size, 1))()


@pytest.fixture
def make_plugin(library, monkeypatch) -> Iterator[Callable[..., Plugin]]:
    made: list[Plugin] = []
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    # Beside other work a thread may wait for seconds: who is slow must not count as dead.
    monkeypatch.setenv("BAGUA_NET_TIMEOUT_S", "60")

    def make(version: int = 12, **variables: str) -> Plugin:
        for name, value in variables.items():
            monkeypatch.setenv(f"BAGUA_NET_{name.upper()}", value)
        made.append(Plugin(library, version))
        return made[-1]

    yield make
    for plugin in made:
        plugin.finalize()


@pytest.fixture
def connect() -> Iterator[Callable[[Plugin], Link]]:
    """Makes links, which are closed when the test has ended."""
    links: list[Link] = []

    def connect(plugin: Plugin) -> Link:
        handle, listener = plugin.listen()
        sender = plugin.connect(handle)  # by the thread that will accept, and before it does
        receiver = plugin.accept(listener)
        links.append(Link(plugin, listener, handle, sender, receiver))
        return links[-1]

    yield connect
    for link in links:
        link.close()
