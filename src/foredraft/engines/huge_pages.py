"""Large pages for weights that native code allocates piece by piece. Linux with glibc; elsewhere nothing happens.

Linux gives memory in pages of 4 KB unless a program asks for more, and a pass that reads a gigabyte of weights touches
250 000 of them. A runtime that asks for nothing can still be helped: while it loads, its allocations are sent to one
stretch of the heap for which 2 MB pages were asked before it was touched.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PAGE = 2 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_MADV_HUGEPAGE = 14  # madvise(2)
_LARGEST = 32 << 20
"""glibc lets no larger allocations come from the heap."""
_HEAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p .*\[heap\]$", re.MULTILINE)
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPS = Path("/proc/self/maps")


@contextmanager
def huge_heap(size: int) -> Iterator[bool]:
    """Within it, what is allocated in pieces of at most 32 MB, up to ``size`` bytes in all, lies in huge pages where
    the system has them to give; yields whether they were asked for.

    Only in the main thread, whose allocations come from the heap. Afterwards allocations below 32 MB go on coming from
    the heap, as glibc itself decides once a program has freed a block of that size.
    """
    library = _glibc()
    if library is None or not _offered() or threading.current_thread() is not threading.main_thread():
        yield False
        return
    library.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    library.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST)
    blocks = _reserve(library, size)
    try:
        yield _ask(library)
    finally:
        library.free(blocks[-1])


def _reserve(library: Any, size: int) -> list[int]:
    """Let the heap grow by ``size`` bytes and a block, untouched, and give all but the last block back to it: that one
    keeps the heap from shrinking."""
    block = _LARGEST - PAGE
    blocks = [library.malloc(block) for _ in range(-(-size // block) + 1)]
    for address in blocks[:-1]:
        library.free(address)
    return blocks


def _glibc() -> Any:
    """The C library of this process if it is glibc on Linux."""
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.malloc.restype = ctypes.c_void_p
            library.malloc.argtypes = [ctypes.c_size_t]
            library.free.argtypes = [ctypes.c_void_p]
            library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            return library
    return None


def _offered() -> bool:
    """True where huge pages are given to those who ask (where all get them there is nothing to ask for)."""
    with suppress(OSError):
        return "[madvise]" in _SWITCH.read_text()
    return False


def _ask(library: Any) -> bool:
    """Ask for huge pages for all of the heap."""
    asked = False
    with suppress(OSError):
        for found in _HEAP.finditer(_MAPS.read_text()):  # one mapping for each time that the heap grew otherwise
            start, end = (int(text, 16) for text in found.groups())
            start, end = -(-start // PAGE) * PAGE, end // PAGE * PAGE
            asked |= end > start and library.madvise(start, end - start, _MADV_HUGEPAGE) == 0
    return asked
