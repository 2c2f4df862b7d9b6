"""``foredraft plan``: which target, draft and context fit which phone, before anything is downloaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from foredraft.cli.options import Choices, options
from foredraft.cli.plan_view import document, show_devices, show_fleet, show_one
from foredraft.devices import read_profile
from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.estimate import Weights, estimate
from foredraft.devices.phones import Catalogue, Phone, catalogue
from foredraft.errors import InvalidValue, UnknownName, UsageError
from foredraft.manifest import is_export
from foredraft.memory import KV_TYPES, RUNTIMES
from foredraft.modelfile import ModelShape
from foredraft.plan import (
    Allowance,
    Alphas,
    Bound,
    Candidate,
    Fleet,
    Planned,
    Question,
    Setting,
    allowance,
    given_allowance,
    plan_device,
    read_fleet,
    view,
)
from foredraft.plan.options import HEAD, NGRAM, NONE, RESERVE
from foredraft.plan.picture import picture
from foredraft.plan.planner import check_context
from foredraft.plan.sizes import read_size
from foredraft.profile.report import read_summary
from foredraft.profile.report.shape import ALL
from foredraft.shapes import describe, read_shape
from foredraft.whole_files import write_whole

_CONTEXT = 4096
_SHAPE_KEYS = ("params", "layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "weights")
MODEL_OPTIONS = (
    click.option(
        "--target",
        metavar="MODEL",
        help="A file, an export, a directory, an address, OWNER/REPO:FILE of the hub (its header alone is fetched), a "
        "known name such as llama-3.2-3b@q4_k_m, or a description: params=7B,layers=32,hidden=4096,kv-heads=8.",
    ),
    *(
        click.option(f"--{key.replace('_', '-')}", metavar="X", help=help_text)
        for key, help_text in zip(
            _SHAPE_KEYS,
            (
                "Describe the target instead: its parameters, such as 7B.",
                "Its layers.",
                "Its hidden size.",
                "Its query heads.",
                "Its KV heads.",
                "Its head size.",
                "Its feed-forward size.",
                "Its vocabulary.",
                "Its weights: q4_0, q4_k_m, q8_0, f16, int4, …",
            ),
            strict=True,
        )
    ),
    click.option("--draft", metavar="MODEL|head|ngram|none", help="The draft beside it. [default: ngram]"),
    click.option(
        "--candidates", metavar="DIR|LIST", help="Drafts to choose from: a directory of models, or names with commas."
    ),
)
WHERE_OPTIONS = (
    click.option("--device", "devices", multiple=True, metavar="NAME|FILE",
                 help="A phone of the catalogue, or a file of `foredraft doctor -o`. Repeatable. [default: all]"),
    click.option("--fleet", metavar="FILE", help="Your users' devices: CSV or JSON with device and share."),
    click.option("--device-file", "device_files", multiple=True, metavar="FILE", help="Further phones; see the guide."),
    click.option("--available", metavar="SIZE", help="Memory measured on the device, such as 3.1GiB; wins over all."),
    click.option("--entitlement", is_flag=True, help="The app has Apple's increased-memory-limit."),
    click.option("--os", "system", metavar="VERSION", help="Version of the system, such as 26.1. [default: any]"),
)  # fmt: skip
USE_OPTIONS = (
    click.option("--ctx", default=0, metavar="N", help="Tokens of context. [default: the model's, at most 4096]"),
    click.option("--runtime", type=click.Choice(RUNTIMES), help="What runs them. [default: by the kind of target]"),
    click.option("--kv-type", type=click.Choice(list(KV_TYPES)), help="Cache type. [default: the runtime's]"),
    click.option("--draft-kv-type", type=click.Choice(list(KV_TYPES)), help="The draft's. [default: --kv-type]"),
    click.option("--requests", default=1, show_default=True, metavar="N", help="Requests at the same time."),
    click.option("--width", default=16, show_default=True, metavar="N", help="Positions verified at once."),
    click.option("--chunk", default=512, show_default=True, metavar="N", help="Tokens of a prompt in one pass."),
    click.option("--reserve", default=f"{RESERVE >> 20}MiB", show_default=True, metavar="SIZE",
                 help="For the rest of the app."),
)  # fmt: skip
SHOW_OPTIONS = (
    click.option("--alpha", "alphas", multiple=True, metavar="[NAME=]X", help="Acceptance of a draft, or of all."),
    click.option("--profile", metavar="DIR", help="Acceptance as `foredraft profile -o DIR` measured it."),
    click.option("--rule-of-fit", is_flag=True, help="Show what weights and caches alone would say, as articles do."),
    click.option("--html", metavar="FILE", help="Also draw the plans: stacked bars against the limits."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables; sizes in bytes."),
)


@click.command("plan")
@options(MODEL_OPTIONS, WHERE_OPTIONS, USE_OPTIONS, SHOW_OPTIONS)
def plan_command(**values: Any) -> int:
    """Plan the memory of a target with its draft on phones.

    Says for each device what fits, what limits it, the largest draft that fits, the one that is fastest, and what to
    change if it does not fit. Nothing is loaded: headers of files are enough. Exit code 1 if the plan does not fit on a
    device that was named.
    """
    given = Choices(values)
    question, known = _question(given), catalogue(*map(Path, given.device_files))
    fleet = None if given.fleet is None else _fleet(given)
    names = _names(given, known, fleet)
    found = [_Place.of(name, known, given).planned(question) for name in names]
    planned = [each for each in found if each is not None]
    seen = None if fleet is None else view(fleet, found)
    warning = check_context([question.target], question.setting.context)
    if given.html is not None:
        write_whole(Path(given.html), picture(question, planned))
    if given.as_json:
        click.echo(json.dumps(document(question, planned, seen, warning), indent=1, ensure_ascii=False))
    elif fleet is not None and seen is not None:
        show_fleet(question, fleet, found, seen)
    elif len(planned) == 1 and given.devices:
        show_one(question, planned[0], rule=given.rule_of_fit)
    else:
        show_devices(question, planned, rule=given.rule_of_fit)
    if warning is not None:
        click.echo(f"note: {warning}", err=True)
    return 1 if given.devices and any(each.asked.fits is False for each in planned) else 0


def _fleet(given: Choices) -> Fleet:
    if given.devices or given.available is not None:
        raise UsageError("--fleet names the devices; leave --device and --available out")
    return read_fleet(Path(given.fleet))


def _names(given: Choices, known: Catalogue, fleet: Fleet | None) -> list[str]:
    if fleet is not None:
        return [name for name, _ in fleet.shares]
    if given.available is not None and len(given.devices) > 1:
        raise UsageError("--available is a reading of one device; name one --device")
    if given.available is not None and not given.devices:
        return ["the device"]
    return list(given.devices) or [phone.name for phone in known.phones if phone.memory is not None]


# --- the question ------------------------------------------------------------------------------------------


def _question(given: Choices) -> Question:
    target = _target(given)
    runtime = given.runtime or ("executorch" if target.source == "export" else "llama_cpp")
    kv_type = given.kv_type or ("f32" if runtime == "executorch" else "f16")
    setting = Setting(
        context=_positive("--ctx", given.ctx) if given.ctx else min(target.context_length or _CONTEXT, _CONTEXT),
        runtime=runtime,
        kv_type=kv_type,
        draft_kv_type=given.draft_kv_type,
        sequences=_positive("--requests", given.requests),
        rows=_positive("--width", given.width),
        chunk=_positive("--chunk", given.chunk),
        reserve=read_size("--reserve", given.reserve),
    )
    return Question(target, _drafts(given, target), setting, _alphas(given))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InvalidValue(name, value, "1 or more")
    return value


def _target(given: Choices) -> ModelShape:
    described = {key.replace("_", "-"): getattr(given, key) for key in _SHAPE_KEYS if getattr(given, key) is not None}
    if given.target is not None and described:
        raise UsageError(f"--target names a model and --{next(iter(described))} describes one; give one of the two")
    if given.target is not None:
        return read_shape(given.target)
    if not described:
        raise UsageError(
            "no target: give --target MODEL, or describe one with --params, --layers, --hidden, --kv-heads"
        )
    return describe(described)


def _drafts(given: Choices, target: ModelShape) -> tuple[Candidate, ...]:
    asked = [] if given.draft is None else [_candidate(given.draft, target)]
    others = [] if given.candidates is None else [_candidate(name, target) for name in _listed(given.candidates)]
    others = [each for each in others if all(each.name != one.name for one in asked)]
    others.sort(key=lambda each: -each.nbytes)
    found = asked + others
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("--candidates", name, "every draft once")
    return tuple(found) or (Candidate(NGRAM),)


def _listed(text: str) -> list[str]:
    folder = Path(text)
    if not folder.is_dir() or is_export(folder):
        return [name for name in text.split(";" if "=" in text else ",") if name.strip()]
    found = [path for path in sorted(folder.iterdir()) if path.suffix == ".gguf" or is_export(path)]
    if not found:
        raise InvalidValue("--candidates", text, "a directory with .gguf files or exports, or names with commas")
    return list(map(str, found))


def _candidate(name: str, target: ModelShape) -> Candidate:
    if name in (NGRAM, NONE):
        return Candidate(name)
    if name in ("head", HEAD):
        return Candidate.head(target)
    shape = read_shape(name.strip())
    return Candidate(Path(name).name if Path(name).exists() else name.strip(), shape)


def _alphas(given: Choices) -> Alphas:
    by_name: dict[str, float] = {}
    default, origin = None, "as given"
    if given.profile is not None:
        summary = read_summary(Path(given.profile))
        by_name = _measured(summary)
        origin = f"measured on your prompts at temperature {summary['settings']['temperature']:g}"
    for text in given.alphas:
        name, equals, number = text.rpartition("=")
        value = _share(text, number)
        if equals:
            by_name[name] = value
        else:
            default = value
    return Alphas(by_name, default, origin)


def _measured(summary: Any) -> dict[str, float]:
    """α of all kinds together under the recorded setting, by draft, with and without the ending of its file."""
    settings, found = summary["settings"], {}
    for row in summary["acceptance"]:
        same = (row["rule"], row["temperature"], row["kind"]) == (settings["rule"], settings["temperature"], ALL)
        if same and row["alpha"]["value"] is not None:
            found[row["draft"]] = found[row["draft"].removesuffix(".gguf")] = row["alpha"]["value"]
    return found


def _share(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise InvalidValue("--alpha", text, "a number from 0 to 1, alone or as NAME=0.7")
    return value


# --- devices -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A device to plan for; ``phone`` None: only its name or its profile is known."""

    name: str
    phone: Phone | None
    known: Catalogue
    allowed: Allowance | None
    measured: MeasuredDevice | None = None

    @staticmethod
    def of(name: str, known: Catalogue, given: Choices) -> _Place:
        path = Path(name)
        available = None if given.available is None else read_size("--available", given.available)
        if path.suffix == ".json" or path.is_file():
            device = MeasuredDevice(read_profile(path), path.stem)
            allowed = _profiled(device) if available is None else given_allowance(device.name, available)
            return _Place(device.name, None, known, allowed, device)
        try:
            phone = known.phone(name)
        except UnknownName:
            if given.fleet is None and available is None:
                raise
            return _Place(name, None, known, None if available is None else given_allowance(name, available))
        if available is not None:
            return _Place(phone.name, phone, known, given_allowance(phone.name, available, phone.system))
        found = allowance(known, phone, entitlement=given.entitlement, system=given.system)
        return _Place(phone.name, phone, known, found)

    def planned(self, question: Question) -> Planned | None:
        """The answer; None for a device of which nothing is known but its name."""
        return None if self.allowed is None else plan_device(question, self.allowed, self.device(question))

    def device(self, question: Question) -> Device | None:
        """For speeds; None where the memory's bandwidth is not known."""
        drafts = _with_head(question)
        if self.measured is not None:
            known = all(_knows(self.measured, each) for each in drafts if each.shape is not None)
            return self.measured if known else None
        if self.phone is None:
            return None
        weights = Weights(question.target.weight_bytes, {each.name: each.nbytes for each in drafts if each.shape})
        try:
            return estimate(self.known, self.phone.name, weights)
        except UsageError:
            return None


def _with_head(question: Question) -> Sequence[Candidate]:
    """The head is among the changes that are tried."""
    heads = [] if any(each.name == HEAD for each in question.drafts) else [Candidate.head(question.target)]
    return [*question.drafts, *heads]


def _knows(device: MeasuredDevice, candidate: Candidate) -> bool:
    try:
        device.costs(candidate.name)
    except UnknownName:
        return False
    return True


def _profiled(device: MeasuredDevice) -> Allowance:
    """What was free beside the loaded models, and the models."""
    profile = device.profile
    if profile.free_bytes is None:
        return Allowance(device.name, ())
    loaded = profile.target.bytes + sum(times.model.bytes for times in profile.drafts)
    origin = f"free beside the loaded models on {profile.measured_at:%Y-%m-%d}, and the models"
    return Allowance(device.name, (Bound("free memory", profile.free_bytes + loaded, origin),))
