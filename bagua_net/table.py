"""A function table of the plugin, driven from Python as NCCL drives it: without a GPU."""

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from host.errors import Failure

VERSIONS = (8, 9, 10, 11, 12)
SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_USAGE, REMOTE_ERROR = 0, 2, 3, 5, 6
HANDLE_BYTES = 128
OPTIONAL_COMPLETION = 1
"""What NCCL may leave in `*request` of an irecv: a hint, and no request."""

_NAMES = (
    *("init", "devices", "get_properties", "listen", "connect", "accept", "register_memory"),
    *("register_dma_buf", "deregister_memory", "isend", "irecv", "iflush", "test", "close_send"),
    *("close_receive", "close_listen", "get_device_memory", "receive_consumed"),
    *("make_virtual_device", "finalize", "set_attributes"),
)
_NUM_FUNCTIONS = {8: 18, 9: 19, 10: 19, 11: 21, 12: 21}
# NCCL's logger has "..." at its end; the plugin always gives it one text there.
_LOGGER = ctypes.CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p, c_char_p)


class PluginError(Failure):
    """A function of the table returned an error; `code` is NCCL's."""

    def __init__(self, function: str, code: int):
        super().__init__(f"{function} of the plugin returned {code}.")
        self.code = code


class Properties(ctypes.Structure):
    """The first fields, which are the same from version 9 on."""

    _fields_ = (
        ("name", c_char_p),
        ("pci_path", c_char_p),
        ("guid", c_uint64),
        ("pointer_support", c_int),
        ("registration_is_global", c_int),
        ("force_flush", c_int),
        ("speed_mbit", c_int),
        ("port", c_int),
        ("latency_us", ctypes.c_float),
        ("most_comms", c_int),
        ("most_receives", c_int),
        ("rest", c_char * 512),
    )


class Plugin:
    """One version's table, initialized.

    Args:
        library: the file to load.
        version: one of `VERSIONS`.
        log: is called with each line for NCCL's log.

    Raises:
        PluginError: if init refuses, such as a wrong environment variable.
    """

    def __init__(self, library: Path, version: int = 12, log: Callable[[str], None] | None = None):
        symbol = f"ncclNetPlugin_v{version}"
        size = 1 + _NUM_FUNCTIONS[version]
        self._table = (c_void_p * size).in_dll(ctypes.CDLL(str(library)), symbol)
        self.version = version
        self.name = ctypes.cast(self._table[0] or 0, c_char_p).value
        self._logger = _LOGGER(
            lambda level, flags, file, line, format, text: log(text.decode()) if log else None
        )
        self._in_use: dict[int, Any] = {}  # by request: the memory must not go before it
        self._context = c_void_p()
        if version >= 11:
            self.call("init", byref(self._context), c_uint64(1), None, self._logger, None)
        else:
            self.call("init", self._logger, *([None] if version == 10 else []))

    def function(self, name: str) -> Callable[..., int] | None:
        """A function of the table; None where the plugin has left it out."""
        address = self._table[1 + _NAMES.index(name)]
        return ctypes.CFUNCTYPE(c_int)(address) if address else None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises `PluginError` unless it succeeds."""
        function = self.function(name)
        assert function is not None, name
        if code := function(*arguments):
            raise PluginError(name, code)

    def num_devices(self) -> int:
        """How many interfaces it offers."""
        num = c_int()
        self.call("devices", byref(num))
        return num.value

    def properties(self, device: int = 0) -> Properties:
        """What it says of a device, from version 9 on."""
        properties = Properties()
        self.call("get_properties", c_int(device), byref(properties))
        return properties

    def listen(self, device: int = 0) -> tuple[bytes, int]:
        """The handle for the peer, and the listening comm."""
        # One byte more than there is: it must stay as it is.
        handle, comm = ctypes.create_string_buffer(b"\xaa" * (HANDLE_BYTES + 1)), c_void_p()
        context = [self._context] if self.version >= 11 else []
        self.call("listen", *context, c_int(device), handle, byref(comm))
        assert handle.raw[HANDLE_BYTES] == 0xAA and comm.value, "it wrote past its handle"
        return handle.raw[:HANDLE_BYTES], comm.value

    def connect_once(self, handle: "ctypes.Array[c_char]", device: int = 0) -> int | None:
        """The sending comm; None: call again, with the same memory."""
        comm, offload = c_void_p(1), c_void_p(1)
        before = [self._context] if self.version >= 11 else []
        config = [None] if self.version == 10 else []
        outputs = (handle, byref(comm), byref(offload))
        self.call("connect", *before, c_int(device), *config, *outputs)
        assert not offload.value
        return comm.value

    def accept_once(self, listen_comm: int) -> int | None:
        """The receiving comm; None: call again."""
        comm, offload = c_void_p(1), c_void_p(1)
        self.call("accept", c_void_p(listen_comm), byref(comm), byref(offload))
        assert not offload.value
        return comm.value

    def connect(self, handle: bytes, limit_s: float = 30) -> int:
        """As `connect_once`, again and again. Raises `TimeoutError`."""
        memory = ctypes.create_string_buffer(handle, HANDLE_BYTES)
        return _until(lambda: self.connect_once(memory), "connect", limit_s)

    def accept(self, listen_comm: int, limit_s: float = 30) -> int:
        """As `accept_once`, again and again. Raises `TimeoutError`."""
        return _until(lambda: self.accept_once(listen_comm), "accept", limit_s)

    def isend(self, comm: int, data: Any, size: int | None = None) -> int | None:
        """The request of a send of `data`, a ctypes array; None where it cannot be made now."""
        request = c_void_p(0xBAD)
        size = len(data) if size is None else size
        width = c_int(size) if self.version == 8 else c_size_t(size)
        profiler = [None] if self.version >= 10 else []
        self.call("isend", c_void_p(comm), data, width, c_int(0), None, *profiler, byref(request))
        return self._keep(request.value, data)

    def irecv(self, comm: int, data: Any, size: int | None = None, hint: int = 0xBAD) -> int | None:
        """The request of a receive into `data`; `hint` is what `*request` holds before."""
        request = c_void_p(hint)
        size = len(data) if size is None else size
        sizes = (c_int * 1)(size) if self.version == 8 else (c_size_t * 1)(size)
        pointers, tags = (c_void_p * 1)(ctypes.addressof(data)), (c_int * 1)(0)
        rest = [None, None] if self.version >= 10 else [None]
        self.call("irecv", c_void_p(comm), c_int(1), pointers, sizes, tags, *rest, byref(request))
        return self._keep(request.value, data)

    def _keep(self, request: int | None, data: Any) -> int | None:
        if request is not None:
            self._in_use[request] = data
        return request

    def test(self, request: int, *, with_size: bool = True) -> int | None:
        """The size of a request that is done, 0 if that was not asked for; None: not done yet."""
        done, size = c_int(7), c_int(0)
        self.call("test", c_void_p(request), byref(done), byref(size) if with_size else None)
        assert done.value in (0, 1)
        if done.value:
            self._in_use.pop(request, None)
        return size.value if done.value else None

    def wait(self, request: int, limit_s: float = 60, pause_s: float = 0.0002) -> int:
        """As `test`, again and again. Raises `TimeoutError`."""
        return _until(lambda: self.test(request), "request", limit_s, pause_s)

    def close(self, kind: str, comm: int) -> None:
        """Close a comm of the kind "send", "receive" or "listen"."""
        self.call(f"close_{kind}", c_void_p(comm))

    def finalize(self) -> None:
        """End the context, from version 11 on."""
        if self._context:
            self.call("finalize", self._context)
            self._context = c_void_p()


def _until(
    attempt: Callable[[], int | None], what: str, limit_s: float, pause_s: float = 2e-4
) -> int:
    until_s = time.monotonic() + limit_s
    while (answer := attempt()) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"The plugin's {what} is not done after {limit_s:g} s.")
        time.sleep(pause_s)
    return answer
