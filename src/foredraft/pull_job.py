"""What every download shares: a lock and a partial directory per model, room on the disk, the final check.

It knows files and the disk, not where bytes come from.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from foredraft.catalogue import cache_dir
from foredraft.errors import PullError
from foredraft.gguf_types import printable

if sys.platform != "win32":
    import fcntl

CHUNK = 1 << 20
"""Bytes copied or hashed at a time."""
POLL = 0.2
"""Seconds between two looks at something another process does."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` bytes of one stage; ``wait`` = another process is pulling the same model."""

    stage: Literal["wait", "download", "check"]
    done: int
    total: int


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True, slots=True)
class Job:
    """One download: ``work`` is its partial directory, ``needed`` the bytes it takes on disk in all."""

    name: str
    final: Path
    size: int
    sha256: str
    needed: int

    @property
    def work(self) -> Path:
        """Holds everything unfinished; removed when the model is complete."""
        return cache_dir() / "partial" / self.final.relative_to(cache_dir()).with_suffix("")

    def missing(self) -> int:
        """Bytes that are still to be written."""
        return max(0, self.needed - sum(sizes(self.work)))


def sizes(folder: Path) -> Iterator[int]:
    """Sizes of all files below ``folder``, which may change meanwhile."""
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path.stat().st_size
        except FileNotFoundError:
            continue


@contextmanager
def ready(job: Job, progress: Report) -> Iterator[None]:
    """Hold the job's lock; turn what the disk says meanwhile into PullError."""
    try:
        job.work.parent.mkdir(parents=True, exist_ok=True)
        with job.work.with_name(f"{job.work.name}.lock").open("a") as file:
            _lock(file, progress)
            yield
    except OSError as error:
        raise PullError(_disk_advice(job, error)) from error


def _lock(file: IO[str], progress: Report) -> None:
    """Wait for the exclusive lock on ``file``; it ends with the file or the process. None on Windows."""
    while sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(Progress("wait", 0, 0))
            time.sleep(POLL)
        else:
            return


def check_space(job: Job) -> None:
    """Raise the disk's own error now if what is still to be written will not fit."""
    if shutil.disk_usage(job.work.parent).free < job.missing():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _disk_advice(job: Job, error: OSError) -> str:
    place = printable(str(cache_dir()))
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        free = shutil.disk_usage(cache_dir()).free
        return (
            f"{job.name}: not enough space in {place}: "
            f"{job.missing()} bytes more are needed, {free} are free; "
            "free some, or set FOREDRAFT_CACHE to a directory on another disk"
        )
    if error.errno is None:
        return f"{job.name}: {printable(str(error).partition(chr(10))[0], 200)}; pull it again"
    reason = printable(error.strerror or "unknown error")
    return f"{job.name}: cannot write to {place} ({reason}); set FOREDRAFT_CACHE to a directory you may write to"


def _is_right(path: Path, job: Job, progress: Report) -> bool:
    """True if ``path`` has the job's size and sha256."""
    if not path.is_file() or path.stat().st_size != job.size:
        return False
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(Progress("check", done, job.size))
    return digest.hexdigest() == job.sha256


def is_there(job: Job, progress: Report) -> bool:
    """True if the model is complete already; a partial directory left by a kill at the last moment goes."""
    there = _is_right(job.final, job, progress)
    if there:
        shutil.rmtree(job.work, ignore_errors=True)
    return there


def finish(job: Job, file: Path, progress: Report) -> Path:
    """Check the finished ``file``, move it to its final name and remove the partial directory."""
    if not _is_right(file, job, progress):
        shutil.rmtree(job.work)
        raise PullError(
            f"{job.name}: the download is damaged (its sha256 is not {job.sha256}); it was removed, pull it again"
        )
    job.final.parent.mkdir(parents=True, exist_ok=True)
    file.replace(job.final)
    shutil.rmtree(job.work, ignore_errors=True)
    return job.final
