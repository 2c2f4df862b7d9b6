"""A device profile: what passes of one target, and of its drafts, take on one machine. Read, checked, written.

It knows no engine and does no measuring; ``doctor`` fills it, controllers read it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from foredraft.control.priors import NGRAM, Priors, SourcePriors
from foredraft.devices.machine import Machine
from foredraft.errors import ProfileError
from foredraft.records import DamagedRecord, record, shown
from foredraft.speed import Curve
from foredraft.whole_files import write_whole

FORMAT = "foredraft-device-profile"
SCHEMA = 1
MODEL = "model"
"""The name of the first draft model among the sources of ``Priors``."""
_MAX_BYTES = 1 << 20
_WIDEST = 4096


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model: file ``name``, ``fingerprint`` (see ``kept.fingerprint``), the ``engine`` that runs it, size of its file
    in ``bytes``."""

    name: str
    fingerprint: str
    engine: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Passes over ``width`` tokens, a row of scores for each: median in ``seconds``, count in ``runs``, and ``spread``,
    half the interquartile range ÷ the median."""

    width: int
    seconds: float
    spread: float
    runs: int


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """A draft model and its ``passes`` of 1 and of 4 nodes, each taken after a pass of the target."""

    model: ModelFacts
    passes: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Rollback:
    """Seconds of ``keep`` after a draft that was rejected whole: ``chain`` of 4 tokens, ``tree`` of 8 nodes. None: not
    measured, or not possible."""

    chain: float | None = None
    tree: float | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """How far passes of ``width`` tokens move ``logits`` (see ``certify.numeric_noise``); 0.0 means bit for bit."""

    width: int
    logits: float


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One measurement. ``date``: UTC, ISO 8601. ``context``: tokens in the cache while it was measured.

    ``curve``: widths ascending from 1. ``tree``, ``hidden``, ``widths``: what the target's engine offers (trees, hidden
    rows, the only widths a pass may have). ``settings``: those of the engine that change times or bits. ``free_bytes``:
    memory free beside the loaded models. ``took``: seconds of measuring. ``quick``: a short look, to be replaced by a
    full one. ``notes``: what else a reader should know.
    """

    date: str
    machine: Machine
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    threads: int
    target: ModelFacts
    context: int
    curve: tuple[Timing, ...]
    drafts: tuple[DraftTimes, ...]
    rollback: Rollback
    tree: bool
    hidden: bool
    width_noise: tuple[Noise, ...]
    tree_noise: tuple[Noise, ...]
    took: float
    widths: tuple[int, ...] | None = None
    free_bytes: int | None = None
    quick: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def step_seconds(self) -> float:
        """time(1): a pass over one token."""
        return self.curve[0].seconds

    @property
    def measured_at(self) -> datetime:
        """``date`` as a time with its zone."""
        return datetime.fromisoformat(self.date)

    def verify_curve(self) -> Curve:
        """v(N) = time(N) / time(1)."""
        return _relative(self.curve, self.step_seconds)

    def draft_curve(self, index: int = 0) -> Curve:
        """c(N) = a pass of the draft over N nodes / time(1) of the target."""
        return _relative(self.drafts[index].passes, self.step_seconds)

    def cost(self, index: int = 0) -> float:
        """c = c(1) of the draft ``index``."""
        return self.draft_curve(index)(1)

    def as_priors(self, drafters: Collection[str] = ("ngram", MODEL)) -> Priors:
        """What a controller may start from, for those of ``drafters`` that are known here: n-gram first, then the first
        draft model."""
        sources = {"ngram": NGRAM} if "ngram" in drafters else {}
        if MODEL in drafters and self.drafts:
            sources[MODEL] = SourcePriors(cost=self.cost())
        return Priors(self.verify_curve(), True, self.step_seconds, sources)

    def as_json(self) -> dict[str, Any]:
        """The document of a profile file. ``step_seconds``, ``v`` and ``cost`` are for its readers: they follow from
        the rest, and are not read back."""
        data = {"format": FORMAT, "schema": SCHEMA, **asdict(self), "step_seconds": self.step_seconds}
        for timing in data["curve"]:
            timing["v"] = timing["seconds"] / self.step_seconds
        for index, draft in enumerate(data["drafts"]):
            draft["cost"] = self.cost(index)
        return data


def _relative(timings: tuple[Timing, ...], step: float) -> Curve:
    return Curve(tuple(each.width for each in timings), tuple(each.seconds / step for each in timings))


# --- files -------------------------------------------------------------------------------------------------


def write_profile(profile: DeviceProfile, path: Path) -> None:
    """Write the whole file or nothing: under another name first, then renamed."""
    text = json.dumps(profile.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, text)


def read_profile(path: Path) -> DeviceProfile:
    """The profile in ``path``; ProfileError, one line, for whatever is wrong with it."""
    data = _load(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ProfileError(f"{path}: is no device profile; make one with `foredraft doctor -o FILE`")
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise ProfileError(
            f"{path}: schema version is {shown(schema)}; this foredraft reads {SCHEMA}; measure again with "
            "`foredraft doctor --refresh -o FILE`"
        )
    try:
        profile = record(DeviceProfile, data)
        _check(profile)
    except DamagedRecord as error:
        raise ProfileError(f"{path}: {error}; measure again with `foredraft doctor --refresh -o FILE`") from None
    return profile


def _load(path: Path) -> Any:
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "no such file"
            raise ProfileError(f"{path}: {what}; make a device profile with `foredraft doctor -o FILE`")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    if len(data) > _MAX_BYTES:
        raise ProfileError(f"{path}: is larger than {_MAX_BYTES >> 10} KiB, so it is no device profile")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProfileError(f"{path}: is not JSON; make a device profile with `foredraft doctor -o FILE`") from None


def _check(profile: DeviceProfile) -> None:
    """What single values do not show."""
    _check_timings("curve", profile.curve)
    for index, draft in enumerate(profile.drafts):
        _check_timings(f"drafts[{index}].passes", draft.passes)
    try:
        aware = profile.measured_at.tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise DamagedRecord(f"date is {shown(profile.date)}, not an ISO 8601 date and time with its zone")
    if profile.widths is not None and (not profile.widths or min(profile.widths) < 1):
        raise DamagedRecord(f"widths is {shown(list(profile.widths))}, not a list of positive widths, or null")
    if profile.threads < 1 or profile.context < 1:
        raise DamagedRecord(f"threads, context are {profile.threads}, {profile.context}, not from 1 on")


def _check_timings(name: str, timings: tuple[Timing, ...]) -> None:
    widths = [each.width for each in timings]
    if widths[:1] != [1] or widths[-1] > _WIDEST or any(left >= right for left, right in pairwise(widths)):
        raise DamagedRecord(f"{name} has the widths {shown(widths)}, not ascending ones from 1 to {_WIDEST}")
    for each in timings:
        if each.seconds < 1e-12 or each.runs < 1:
            raise DamagedRecord(f"{name} at width {each.width} has no time or no runs")
