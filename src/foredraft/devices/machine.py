"""What this machine is: its processor, what this process may use of it, and how much memory is free."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from foredraft import __version__

_PACKAGES = {"llama_cpp": "llama-cpp-python", "executorch": "executorch", "pytorch": "torch"}
"""Engine -> the package whose version decides about its speed."""
_NAMES = ("model name", "Hardware", "Model", "cpu model")
"""Keys of /proc/cpuinfo under which Linux names the processor, by architecture."""
_BUSY = 0.5
"""Load for each usable CPU from which on times are worth a warning."""


@dataclass(frozen=True, slots=True)
class Machine:
    """``system`` and ``architecture`` as Python's ``platform`` calls them; ``processor``: the CPU's own name;
    ``cpus``: those that the process may use; ``memory_bytes``: all of the machine's, None where nobody says."""

    system: str
    architecture: str
    processor: str
    cpus: int
    memory_bytes: int | None = None


def this_machine() -> Machine:
    """The machine that runs this process."""
    return Machine(platform.system(), platform.machine(), _processor(), usable_cpus(), all_memory())


def usable_cpus() -> int:
    """CPUs that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    known: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            known.setdefault(key.strip(), value.strip())
    named = next((known[key] for key in _NAMES if known.get(key)), None)
    return named or _macos_processor() or platform.processor() or "unknown"


def _macos_processor() -> str | None:
    """macOS has the name in a kernel variable only; ``platform.processor`` says "arm" for all of Apple's."""
    if platform.system() != "Darwin":
        return None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    return None


def all_memory() -> int | None:
    """Bytes of memory that this machine has; None where nobody says."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def free_memory() -> int | None:
    """Bytes that this process may still take without swapping (Linux: MemAvailable, within the limit of its control
    group); None where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    room = _group_room(Path("/sys/fs/cgroup"))
    return free if room is None else min(free, room)


def _group_room(folder: Path) -> int | None:
    """What a control group (version 2) may still take: its limit less what it uses, files that can be dropped not
    counted. None without a limit."""
    try:
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
        droppable = sum(int(line.split()[1]) for line in lines if line.split()[0] in ("active_file", "inactive_file"))
        return max(0, int(limit) - used + droppable)
    except (OSError, ValueError, IndexError):
        return None


def busy() -> str | None:
    """A sentence if other programs have kept the CPUs busy during the last minute, else None."""
    with suppress(OSError, AttributeError):
        load, cpus = os.getloadavg()[0], usable_cpus()
        if load >= _BUSY * cpus:
            return f"other programs were running (load {load:.1f} on {cpus} CPUs): times are likely too long"
    return None


def versions(*engines: str) -> dict[str, str]:
    """Versions of foredraft and of the packages behind ``engines``; "unknown" for one without metadata."""
    found = {"foredraft": __version__}
    for package in (_PACKAGES[engine] for engine in engines if engine in _PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
