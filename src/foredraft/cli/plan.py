"""``foredraft plan``: which target, draft and context fit which phone, before anything is downloaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from foredraft.cli.options import Choices, options
from foredraft.cli.plan_question import SHAPE_KEYS, read_question
from foredraft.cli.plan_view import document, show_devices, show_fleet, show_one
from foredraft.devices.phones import Catalogue, Phone, catalogue
from foredraft.errors import UsageError
from foredraft.memory import KV_TYPES, RUNTIMES
from foredraft.plan import Fleet, Planned, Question, read_fleet, view
from foredraft.plan.options import RESERVE
from foredraft.plan.picture import picture
from foredraft.plan.places import Place, Reading, places
from foredraft.plan.planner import warnings
from foredraft.plan.sizes import read_size
from foredraft.whole_files import checked_output, write_whole

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
            SHAPE_KEYS,
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
    click.option("--chunk", type=int, metavar="N", help="Tokens of a prompt in one pass. [default: the runtime's]"),
    click.option("--windowed-cache", is_flag=True, help="The runtime keeps a sliding window's tokens only."),
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
    output = None if given.html is None else checked_output("--html", Path(given.html))
    question, skipped = read_question(given)
    known = catalogue(*map(Path, given.device_files))
    notes = [*skipped, *warnings(question)]
    if given.fleet is not None:
        return _fleet(given, question, known, notes)
    found = [place.planned(question) for place in _places(given, known)]
    if output is not None:
        write_whole(output, picture(question, found))
    one = len(found) == 1 and bool(given.devices or given.available)
    if given.as_json:
        _print(document(question, found, None, notes))
    elif one:
        show_one(question, found[0], rule=given.rule_of_fit)
    else:
        show_devices(question, found, rule=given.rule_of_fit)
    _notes(notes, given)
    named = given.devices or given.available
    return 1 if named and any(each.asked.fits is False for each in found) else 0


def _places(given: Choices, known: Catalogue) -> list[Place]:
    reading = _reading(given)
    if reading.available is not None and len(given.devices) > 1:
        raise UsageError("--available is a reading of one device; name one --device")
    if reading.available is not None and not given.devices:
        return places(["the device"], known, reading)
    if given.devices:
        return places(given.devices, known, reading)
    return [Place.of_phone(phone, known, reading) for phone in known.phones if phone.memory is not None]


def _reading(given: Choices) -> Reading:
    available = None if given.available is None else read_size("--available", given.available)
    return Reading(available, given.entitlement, given.system)


def _fleet(given: Choices, question: Question, known: Catalogue, notes: Sequence[str]) -> int:
    if given.devices or given.available is not None:
        raise UsageError("--fleet names the devices; leave --device and --available out")
    fleet = _merged(read_fleet(Path(given.fleet)), known)
    found: list[Planned | None] = []
    for name, _ in fleet.shares:
        phone: Phone | None = known.find(name)
        found.append(None if phone is None else Place.of_phone(phone, known, _reading(given)).planned(question))
    seen, planned = view(fleet, found), [each for each in found if each is not None]
    if given.html is not None:
        write_whole(Path(given.html), picture(question, planned))
    if given.as_json:
        _print(document(question, planned, seen, notes))
    else:
        show_fleet(question, fleet, found, seen)
    _notes(notes, given)
    return 0


def _merged(fleet: Fleet, known: Catalogue) -> Fleet:
    """Devices under their own names: analytics know one under several."""
    shares: dict[str, float] = {}
    for name, share in fleet.shares:
        phone = known.find(name)
        own = name if phone is None else phone.name
        shares[own] = shares.get(own, 0.0) + share
    return Fleet(tuple(shares.items()))


def _print(found: dict[str, Any]) -> None:
    click.echo(json.dumps(found, indent=1, ensure_ascii=False))


def _notes(notes: Sequence[str], given: Choices) -> None:
    """On standard error; the document has them too."""
    for note in notes if not given.as_json else ():
        click.echo(f"note: {note}", err=True)
