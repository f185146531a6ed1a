"""A wall clock that can be set on for the processes of one room, while the machine's stays as it
is: a library that is loaded before libc, and that adds to what libc says.

What waits in the kernel for a moment of the wall clock does not see it.
"""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

_FILE = "CHAOS_CLOCK"
"""The environment's name for the file that holds by how many seconds the clock is set on."""

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;

void follow(const char *file) {
    int fd = open(file, O_RDONLY);
    if (fd < 0) return;
    void *seen = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (seen != MAP_FAILED) ahead = seen;
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("CHAOS_CLOCK");
    if (file) follow(file);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*libc)(clockid_t, struct timespec *);
    if (!libc) libc = dlsym(RTLD_NEXT, "clock_gettime");
    int code = libc(id, t);
    if (!code && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += *ahead;
    return code;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


def begin_again_with_clock() -> None:
    """Begin this program again with the library loaded; returns where it is, or where there is no
    compiler: then no clock is set on.
    """
    if "LD_PRELOAD" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="chaos-clock-"))
    library = folder / "clock.so"
    (folder / "clock.c").write_text(_SOURCE)
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", library, folder / "clock.c", "-ldl"]
    if subprocess.run(build, check=False).returncode == 0:
        os.environ["LD_PRELOAD"] = str(library)
        os.execv(sys.executable, sys.orig_argv)


def forget() -> None:
    """Delete the library, at the end of the program that has made it."""
    if is_there():
        shutil.rmtree(Path(os.environ["LD_PRELOAD"]).parent)


def is_there() -> bool:
    """Whether this program's clock can be set on."""
    return "LD_PRELOAD" in os.environ


def follow(file: Path) -> None:
    """From now on this process and its children have a clock of their own, by `file`."""
    if is_there():
        file.write_bytes(struct.pack("l", 0))
        os.environ[_FILE] = str(file)
        ctypes.CDLL(os.environ["LD_PRELOAD"]).follow(os.fsencode(file))


def set_on(seconds: int) -> None:
    """Set the clock on, of all that follow this process's file."""
    with open(os.environ[_FILE], "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        shared[:8] = struct.pack("l", seconds)
