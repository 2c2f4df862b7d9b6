"""Reads a profile summary and checks it, so that page and Markdown need not: one clear error instead of half a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

from foredraft.errors import ProfileError
from foredraft.profile.report.schema import Fault, first_fault, shown
from foredraft.profile.report.shape import ALL, FORMAT, SCHEMA, DeviceUsed, Summary


@cache
def summary_schema() -> Mapping[str, Any]:
    """The JSON Schema of a summary (draft 2020-12)."""
    text = files("foredraft.profile.report").joinpath("schema.json").read_text("utf-8")
    return cast("Mapping[str, Any]", json.loads(text))


def read_summary(path: Path) -> Summary:
    """The summary in a file, or in `profile.json` of a directory; ProfileError, one line, if it is none."""
    file = path / "profile.json" if path.is_dir() else path
    try:
        if file.exists() and not file.is_file():
            raise ProfileError(f"{file}: is no file; give a profile.json of `foredraft profile`, or its directory")
        document = json.loads(file.read_text("utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise ProfileError(f"{file}: no such file; `foredraft profile -o DIR` writes DIR/profile.json") from None
    except (OSError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProfileError(f"{file}: cannot be read as JSON ({error}); profile again") from None
    try:
        return check_summary(document)
    except ProfileError as error:
        raise ProfileError(f"{file}: {error}") from None


def check_summary(document: object) -> Summary:
    """The document itself if it is a summary of this schema version, else ProfileError naming the first fault."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ProfileError(f"is no profile summary (no format {FORMAT!r}); give a profile.json of `foredraft profile`")
    version = document.get("schema")
    if version != SCHEMA:
        fix = "profile again, or use the release that wrote it"
        raise ProfileError(f"schema version is {shown(version)}; this release reads version {SCHEMA}: {fix}")
    fault = first_fault(document, summary_schema())
    if fault is None:
        fault = next(_inconsistencies(cast("Summary", document)), None)
    if fault is not None:
        raise ProfileError(f"{fault}; the summary is damaged: profile again")
    return cast("Summary", document)


def draft_cost(device: DeviceUsed, draft: str) -> float | None:
    """c of one pass on this device, in plain steps: the draft's own, else the sum over its parts; None if unknown.

    >>> device = {"draft_cost": {"ngram": 0.0, "small": 0.3}}
    >>> draft_cost(device, "ngram+small"), draft_cost(device, "large")
    (0.3, None)
    """
    costs = device["draft_cost"]
    if draft in costs:
        return costs[draft]
    parts = draft.split("+")
    return sum(costs[part] for part in parts) if all(part in costs for part in parts) else None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


# --- what a schema cannot say ------------------------------------------------------------------------------


def _inconsistencies(summary: Summary) -> Iterator[Fault]:
    yield from _names(summary)
    yield from _lengths(summary)
    yield from _orders(summary)
    yield from _missing(summary)
    if summary["settings"]["redacted"] and summary["samples"]:
        yield Fault("samples", f"a list of {len(summary['samples'])}", "none, since the profile is redacted")


def _names(summary: Summary) -> Iterator[Fault]:
    """Names are unique, and every name used is one of them."""
    known: dict[str, list[Any]] = {
        "kind": [kind["name"] for kind in summary["kinds"]],
        "draft": [draft["name"] for draft in summary["drafts"]],
        "device": [device["name"] for device in summary["devices"]],
        "rule": list(summary["rules"]),
    }
    for what, names in known.items():
        for index, name in enumerate(names):
            if name in names[:index] or (what == "kind" and name == ALL):
                yield Fault(f"{what}s[{index}]", shown(name), f"a {what} of its own" + f", not {ALL}" * (name == ALL))
    known["kind"] = [ALL, *known["kind"]]
    if summary["settings"]["rule"] not in known["rule"]:
        yield Fault("settings.rule", shown(summary["settings"]["rule"]), _one_of(known["rule"]))
    for table in ("acceptance", "predictions", "trees", "verdicts", "samples"):
        for index, row in enumerate(cast("list[dict[str, Any]]", summary[table])):
            for what, names in known.items():
                if row.get(what) is not None and row[what] not in names:
                    yield Fault(f"{table}[{index}].{what}", shown(row[what]), _one_of(names))


def _lengths(summary: Summary) -> Iterator[Fault]:
    """Lists by chain length have ``longest`` numbers; a curve has as many values as widths."""
    longest = summary["longest"]
    lists: list[tuple[str, int, int]] = []
    for index, row in enumerate(summary["acceptance"]):
        lists.append((f"acceptance[{index}].expected", len(row["expected"]), longest))
        lists.append((f"acceptance[{index}].model_passes", len(row["model_passes"]), longest))
        lists.append((f"acceptance[{index}].widths", len(row["widths"]), longest))
        for length, shares in enumerate(row["widths"], 1):
            lists.append((f"acceptance[{index}].widths[{length - 1}]", len(shares), length + 1))
    for index, found in enumerate(summary["predictions"]):
        lists.append((f"predictions[{index}].by_length", len(found["by_length"]), longest))
    for index, device in enumerate(summary["devices"]):
        curve = device["verify"]
        lists.append((f"devices[{index}].verify.values", len(curve["values"]), len(curve["widths"])))
    for where, count, wanted in lists:
        if count != wanted:
            yield Fault(where, f"a list of {count}", f"a list of {wanted}")
    for index, found in enumerate(summary["predictions"]):
        if found["best"]["length"] > longest:
            yield Fault(f"predictions[{index}].best.length", str(found["best"]["length"]), f"at most {longest}")


def _orders(summary: Summary) -> Iterator[Fault]:
    """What ascends, ascends; intervals have two ends in order; parents stand before their children."""
    if not _ascends(summary["temperatures"]):
        yield Fault("temperatures", shown(summary["temperatures"]), "ascending numbers, each once")
    for index, device in enumerate(summary["devices"]):
        widths = device["verify"]["widths"]
        if not _ascends(widths) or widths[0] != 1:
            yield Fault(f"devices[{index}].verify.widths", shown(widths), "ascending widths from 1")
    for index, tree in enumerate(summary["trees"]):
        if any(parent >= node for node, parent in enumerate(tree["parents"])):
            yield Fault(f"trees[{index}].parents", shown(tree["parents"]), "each parent before its children")
    for where, found in _intervals(summary):
        low, high = found["low"], found["high"]
        if (low is None) != (high is None) or (low is not None and low > high):
            yield Fault(where, shown({"low": low, "high": high}), "low ≤ high, or null for both")


def _intervals(summary: Summary) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, row in enumerate(summary["acceptance"]):
        yield f"acceptance[{index}].alpha", row["alpha"]
        for depth, rate in enumerate(row["by_depth"]):
            yield f"acceptance[{index}].by_depth[{depth}]", rate
    for index, found in enumerate(summary["predictions"]):
        yield f"predictions[{index}].best.speedup", found["best"]["speedup"]
    for index, verdict in enumerate(summary["verdicts"]):
        yield f"verdicts[{index}].speedup", verdict["speedup"]


def _missing(summary: Summary) -> Iterator[Fault]:
    """A verdict for every device; the cost of every draft that is predicted on a device; every cell once."""
    judged = {verdict["device"] for verdict in summary["verdicts"]}
    devices = {device["name"]: (index, device) for index, device in enumerate(summary["devices"])}
    for name, (index, _) in devices.items():
        if name not in judged:
            yield Fault("verdicts", f"without the device {shown(name)}", "at least one verdict for every device")
        for draft in {row["draft"] for row in summary["predictions"] if row["device"] == name}:
            if draft_cost(devices[name][1], draft) is None:
                yield Fault(
                    f"devices[{index}].draft_cost", f"without {shown(draft)}", "a cost for every draft predicted"
                )
    for table, keys in (
        ("acceptance", ("draft", "kind", "rule", "temperature")),
        ("predictions", ("draft", "kind", "device")),
        ("trees", ("draft", "kind", "device")),
        ("verdicts", ("kind", "device")),
    ):
        seen = set()
        for index, row in enumerate(cast("list[dict[str, Any]]", summary[table])):  # type: ignore[literal-required]
            cell = tuple(row[key] for key in keys)
            if cell in seen:
                yield Fault(f"{table}[{index}]", shown(cell), "each " + " × ".join(keys) + " once")
            seen.add(cell)


def _ascends(numbers: Iterable[float]) -> bool:
    return all(left < right for left, right in pairwise(numbers))


def _one_of(names: Iterable[Any]) -> str:
    return "one of " + ", ".join(map(shown, names))
