"""The raw numbers of a benchmark and the file that keeps them: every run of every arm on every prompt, no text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foredraft.certify import Difference
from foredraft.errors import InvalidValue, ModelFileError
from foredraft.summary import Summary
from foredraft.whole_files import checked_output, write_whole

FORMAT, SCHEMA = "foredraft-bench", 1


@dataclass(frozen=True, slots=True)
class Run:
    """One generation. ``seconds``: wall time of all rounds, the controller's own included; ``prompt_seconds``: wall
    time before the first round (the target, and a draft model, read the prompt). ``depths``: (accepted, evaluated) at
    depth 1, 2, …. ``rungs``: rounds by what was drafted; ``reasons``: why nothing was, in how many rounds. ``parts``:
    seconds of draft, verify, keep and other as the loop counts them. ``same``: the ids are the first plain run's."""

    generated: int
    rounds: int
    seconds: float
    prompt_seconds: float
    drafted: int
    evaluated: int
    accepted: int
    depths: tuple[tuple[int, int], ...]
    rungs: Mapping[str, int]
    reasons: Mapping[str, int]
    parts: Mapping[str, float]
    same: bool
    finish: str

    @property
    def per_token(self) -> float:
        """Seconds per generated token, reading the prompt not counted."""
        return self.seconds / self.generated

    @property
    def whole_per_token(self) -> float:
        """Seconds per generated token, reading the prompt included."""
        return (self.seconds + self.prompt_seconds) / self.generated

    @staticmethod
    def of(summary: Summary, seconds: float, prompt_seconds: float, *, same: bool) -> Run:
        """From a finished request."""
        return Run(
            generated=summary.generated,
            rounds=summary.rounds,
            seconds=seconds,
            prompt_seconds=prompt_seconds,
            drafted=summary.drafted,
            evaluated=summary.evaluated,
            accepted=summary.accepted,
            depths=tuple((accepted, evaluated) for accepted, evaluated in summary.depths),
            rungs={str(rung): count for rung, count in summary.rungs.items()},
            reasons=dict(summary.reasons),
            parts=asdict(summary.seconds),
            same=same,
            finish=summary.finish_reason or "cancelled",
        )

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Run:
        """The inverse of ``dataclasses.asdict``; ValueError for numbers that no run can have."""
        run = Run(**{**row, "depths": tuple((int(left), int(right)) for left, right in row["depths"])})
        counts = (run.rounds, run.drafted, run.evaluated, run.accepted, *run.rungs.values(), *run.reasons.values())
        if min(counts) < 0 or run.generated < 1 or not 0 < run.seconds < math.inf:
            raise ValueError("a run without tokens or time")
        if not 0 <= run.prompt_seconds < math.inf or not isinstance(run.same, bool):
            raise ValueError("a run without a time for its prompt")
        return run


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """All runs of one arm on one prompt; ``differences``: where its texts leave plain decoding's, each text once."""

    runs: tuple[Run, ...]
    differences: tuple[Difference, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain types; an infinite gap becomes null."""
        return {
            "runs": [asdict(run) for run in self.runs],
            "differences": [
                asdict(found) | {"gap": found.gap if math.isfinite(found.gap) else None, "near_tie": found.near_tie}
                for found in self.differences
            ],
        }

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> ArmRuns:
        """The inverse of ``as_json``."""
        differences = []
        for each in row["differences"]:
            gap = math.inf if each["gap"] is None else float(each["gap"])
            differences.append(Difference(each["index"], each["plain"], each["other"], gap, float(each["noise"])))
        runs = tuple(Run.from_json(run) for run in row["runs"])
        if not runs:
            raise ValueError("an arm without runs")
        return ArmRuns(runs, tuple(differences))


@dataclass(frozen=True, slots=True)
class Record:
    """One prompt on one target; ``arms`` by name, "plain" is one. ``key``, ``kind``, ``warm``: see ``Prompt``."""

    target: str
    key: str
    line: int
    kind: str
    warm: bool
    prompt_tokens: int
    arms: Mapping[str, ArmRuns]

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        names = ("target", "key", "line", "kind", "warm", "prompt_tokens")
        row = {name: getattr(self, name) for name in names}
        return row | {"arms": {name: arm.as_json() for name, arm in self.arms.items()}}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Record:
        """The inverse of ``as_json``."""
        return Record(**{**row, "arms": {name: ArmRuns.from_json(arm) for name, arm in row["arms"].items()}})


@dataclass
class RawFile:
    """The file at ``path``. ``setup``: what must be the same in all parts of one benchmark; ``about``: date and
    versions of the last part."""

    path: Path
    setup: Mapping[str, Any]
    about: Mapping[str, Any]
    records: list[Record] = field(default_factory=list)

    @staticmethod
    def begin(path: Path, setup: Mapping[str, Any], about: Mapping[str, Any], *, resume: bool) -> RawFile:
        """A new file, or with ``resume`` the one that is there, if it is of the same setup."""
        setup = json.loads(json.dumps(setup))
        checked_output("--output", path)
        if not path.exists():
            return RawFile(path, setup, about)
        if not resume:
            fix = "a name that is not taken; or add --resume to go on with that file"
            raise InvalidValue("--output", str(path), fix)
        known = _read(path)
        other = _differing(known["setup"], setup)
        if other:
            words = "; ".join(other)
            raise InvalidValue("--resume", str(path), f"a file of the same setup; this one has other values of {words}")
        return RawFile(path, setup, about, _records(path, known))

    def find(self, target: str, key: str) -> Record | None:
        """The finished record of a prompt."""
        return next((record for record in self.records if (record.target, record.key) == (target, key)), None)

    def add(self, records: Sequence[Record]) -> None:
        """Take finished records in and write the file."""
        self.records += records
        self.write()

    def write(self) -> None:
        """Into a temporary file beside it, then renamed: the file is whole at any time."""
        head = {"format": FORMAT, "schema": SCHEMA, "about": dict(self.about), "setup": dict(self.setup)}
        document = head | {"records": [record.as_json() for record in self.records]}
        write_whole(self.path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or known.get("format") != FORMAT or not isinstance(known.get("setup"), dict):
        raise ModelFileError(f"{path}: is not a raw file of foredraft bench; choose another --output")
    if known.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{path}: has schema {known.get('schema')!r}, this version writes {SCHEMA}; start a new file"
        )
    return known


def _records(path: Path, known: Mapping[str, Any]) -> list[Record]:
    try:
        return [Record.from_json(row) for row in known["records"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: a record in it is damaged ({error!r}); start a new file") from error


def _differing(known: Mapping[str, Any], wanted: Mapping[str, Any], above: str = "") -> list[str]:
    """Names of the settings that are not the same, with both values where they are short."""
    found = []
    for name in dict.fromkeys((*known, *wanted)):
        left, right = known.get(name), wanted.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            found += _differing(left, right, f"{above}{name}.")
        elif left != right:
            short = len(f"{left}{right}") < 120
            found.append(f"{above}{name}" + (f" ({left} there, {right} now)" if short else ""))
    return found
