"""The catalogue of phones: every number says where it comes from, unknown stays unknown, users' files are checked."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.devices.phones import FORMAT, MARKS, Catalogue, catalogue
from foredraft.errors import InvalidValue, ProfileError, UnknownName, UsageError

BUILT_IN = catalogue()
RAW = json.loads(resources.files("foredraft.devices").joinpath("phones.json").read_text("utf-8"))


# --- the data ----------------------------------------------------------------------------------------------


def numbers(data: Any, where: str = "", owner: Any = None) -> Iterator[tuple[str, Any]]:
    """Every number with the object that holds it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, f"{where}.{key}", data)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from numbers(value, f"{where}[{index}]", owner)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield where, owner


def test_every_number_has_a_source_a_date_and_a_mark() -> None:
    found = [(where, owner) for where, owner in numbers(RAW) if where != ".schema"]
    assert len(found) > 190
    for where, owner in found:
        assert owner.get("mark") in MARKS and owner.get("source") and owner.get("date"), where


def test_a_date_that_is_only_one_of_reading_says_so() -> None:
    for where, owner in numbers(RAW):
        if owner.get("date") == "2026-11":
            assert "read in November 2026" in owner.get("note", ""), where


def test_what_is_only_leaked_stays_unknown() -> None:
    """The sources mark these as leaks or have no figure: they must not creep in."""
    for chip in ("A14", "A15", "A19", "A19 Pro", "Tensor G3", "Tensor G4", "Tensor G5", "Exynos 2400"):
        assert BUILT_IN.chips_by_name[chip.lower()].bandwidth is None, chip
    for chip in ("A17 Pro", "Snapdragon 8 Elite", "Dimensity 9400", "Tensor G5"):
        assert BUILT_IN.chips_by_name[chip.lower()].npu_operations is None, chip
    for name in ("iPhone 17", "iPhone Air", "Galaxy S24", "OnePlus 13"):
        assert BUILT_IN.phone(name).memory is None, name
    for name in ("Galaxy S22", "Galaxy S24"):  # the chip differs between countries
        assert BUILT_IN.phone(name).chip is None, name
        assert BUILT_IN.bandwidth(BUILT_IN.phone(name)) is None, name


@pytest.mark.parametrize(
    ("name", "gigabytes", "bandwidth"),
    [
        ("iPhone 15 Pro", 8, 51.2e9),
        ("iPhone 16 Pro", 8, 59.9e9),
        ("iPhone 14", 6, None),
        ("iPhone 17 Pro", 12, None),
        ("OnePlus 12", 16, 76.8e9),
        ("Galaxy S23", 8, 67.2e9),
        ("Galaxy S25", None, 84.8e9),
        ("Pixel 9 Pro", 16, None),
        ("vivo X200", None, 85.6e9),
    ],
)
def test_figures_of_single_phones(name: str, gigabytes: int | None, bandwidth: float | None) -> None:
    phone = BUILT_IN.phone(name)
    assert (phone.memory and phone.memory.value) == (gigabytes and gigabytes * 2**30)
    fact = BUILT_IN.bandwidth(phone)
    assert (fact and fact.value) == bandwidth


def test_memory_of_chips_is_counted_in_gib_and_limits_below_it() -> None:
    for phone in BUILT_IN.phones:
        assert phone.memory is None or phone.memory.value % 2**30 == 0, phone.name
    for row in BUILT_IN.limits:
        memory = BUILT_IN.phone(row.device).memory
        assert memory is None or 0.2 * memory.value < row.bytes < memory.value, row


def test_what_ios_prints_as_mb_is_mib() -> None:
    printed = [row for row in BUILT_IN.limits if row.note and "limit=" in row.note]
    assert len(printed) == 3
    for row in printed:
        assert row.note is not None and row.bytes == int(row.note.split("limit=")[1].split(" MB")[0]) * 2**20


def test_rows_are_about_devices_of_the_catalogue() -> None:
    names = {phone.name for phone in BUILT_IN.phones} | {chip.name for chip in BUILT_IN.chips}
    about = [row.device for row in BUILT_IN.limits] + [row.device for row in BUILT_IN.decode]
    assert [device for device in about if device not in names] == []
    for each in BUILT_IN.speculation:
        assert each.off is None or each.on is None or each.ratio == pytest.approx(each.on / each.off, abs=0.001)


def test_speeds_and_outcomes_of_one_phone() -> None:
    speeds = {row.model: row for row in BUILT_IN.speeds_of(BUILT_IN.phone("OnePlus 12")) if "KleidiAI" in row.runtime}
    assert speeds["Llama 3.2 1B SpinQuant"].tokens_per_second == 50.2
    assert speeds["Llama 3.2 1B SpinQuant"].file_bytes == 1083 * 2**20
    assert [row.ratio for row in BUILT_IN.speculation_on(BUILT_IN.phone("Pixel 10 Pro"))] == [0.345]
    assert BUILT_IN.speculation_on(BUILT_IN.phone("iPhone 14")) == []


# --- looking up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("iPhone 15 Pro", "iPhone 15 Pro"),
        ("  apple IPHONE-15_pro ", "iPhone 15 Pro"),
        ("iPhone16,1", "iPhone 15 Pro"),
        ("Samsung Galaxy S24 Ultra", "Galaxy S24 Ultra"),
        ("google pixel 9", "Pixel 9"),
        ("CPH2583", "OnePlus 12"),
        ("SM8650", "Snapdragon 8 Gen 3"),
        ("qualcomm snapdragon 7+ gen 2", "Snapdragon 7+ Gen 2"),
        ("snapdragon 7 plus gen 2", "Snapdragon 7+ Gen 2"),
    ],
)
def test_names_are_found_however_they_are_written(asked: str, name: str) -> None:
    assert BUILT_IN.phone(asked).name == name


def test_a_chip_stands_for_any_phone_with_it() -> None:
    phone = BUILT_IN.phone("snapdragon 8s gen 3")
    fact = BUILT_IN.bandwidth(phone)
    assert phone.memory is None and fact is not None and fact.value == 67.2e9
    chip = BUILT_IN.chip(BUILT_IN.phone("OnePlus 12"))
    assert chip is not None and chip.npu_architecture == "HTP v75"
    assert chip.npu_memory is not None and chip.npu_memory.value == 8 << 20


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        BUILT_IN.phone("iphon 15 pr")
    line = str(caught.value)
    assert "'iphon 15 pr'; did you mean 'iPhone 15 Pro'?" in line and "\n" not in line
    assert all(phone.name in line for phone in BUILT_IN.phones) and "Dimensity 9300" in line
    with pytest.raises(UnknownName) as caught:
        BUILT_IN.phone("")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "entitlement", "system", "limits"),
    [
        ("iPhone 13 Pro", False, None, [3_120_000_000]),
        ("iPhone 13 Pro", True, "18.1", [4_200_000_000]),
        ("iPhone 14 Pro Max", False, "16.0.3", [2867 << 20]),
        ("iPhone 14 Pro Max", False, "17", []),
        ("iPad with 8 GB", True, "26", [6_000_000_000]),
        ("iPad with 8 GB", False, "26.3.1", [6_000_000_000]),
        ("iPad with 8 GB", False, "26.4", [3_000_000_000]),
        ("iPad with 8 GB", False, "26.6", []),
        ("iPad with 8 GB", False, "25.9", []),
        ("iPad with 8 GB", False, None, [6_000_000_000, 3_000_000_000]),
        ("Pixel 8", False, None, []),
    ],
)
def test_limits_by_entitlement_and_version(name: str, entitlement: bool, system: str | None, limits: list[int]) -> None:
    rows = BUILT_IN.limits_of(BUILT_IN.phone(name), entitlement=entitlement, system=system)
    assert [row.bytes for row in rows] == limits


def test_a_version_is_numbers_with_dots() -> None:
    with pytest.raises(InvalidValue, match=r"system version is 'iOS 26'; allowed: numbers with dots"):
        BUILT_IN.limits_of(BUILT_IN.phone("iPhone 14"), entitlement=False, system="iOS 26")


# --- a user's own file -------------------------------------------------------------------------------------

ORIGIN = {"mark": "measured", "source": "our bench", "date": "2026-11"}
OWN: dict[str, Any] = {
    "format": FORMAT,
    "schema": 1,
    "chips": [{"name": "Chip X", "aliases": ["CX1"], "bandwidth": {"value": 5e10, **ORIGIN}}],
    "phones": [
        {
            "name": "My phone",
            "system": "Android",
            "chip": "cx1",
            "aliases": ["mine"],
            "memory": {"value": 6442450944, "mark": "measured", "source": "adb", "date": "2026-11-30"},
        },
        {"name": "Pixel-9", "bandwidth": {"value": 6e10, **ORIGIN}},
    ],
    "limits": [
        {"device": "apple iphone 13 pro", "bytes": 3000000000, "entitlement": True, "system_from": "26.0", **ORIGIN}
    ],
    "decode": [
        {"device": "mine", "model": "m", "runtime": "r", "processor": "CPU", "tokens_per_second": 9.5, **ORIGIN}
    ],
    "speculation": [{"device": "a laptop", "model": "m", "runtime": "r", "ratio": 1.4, **ORIGIN}],
}


def written(data: Any, folder: Path, name: str = "own.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_a_users_file_comes_first_and_leaves_the_rest(tmp_path: Path) -> None:
    found = catalogue(written(OWN, tmp_path))
    mine = found.phone("MINE")
    fact = found.bandwidth(mine)
    assert mine.name == "My phone" and fact is not None and fact.value == 5e10
    own = found.bandwidth(found.phone("google pixel 9"))
    assert own is not None and (own.value, own.source) == (6e10, "our bench")
    assert len(found.phones) == len(BUILT_IN.phones) + 1
    limits = found.limits_of(found.phone("iPhone 13 Pro"), entitlement=True)
    assert [row.bytes for row in limits] == [3_000_000_000, 4_200_000_000] and limits[0].device == "iPhone 13 Pro"
    assert [row.tokens_per_second for row in found.speeds_of(mine)] == [9.5]
    assert found.speculation[0].device == "a laptop"
    assert catalogue() is BUILT_IN and BUILT_IN.bandwidth(BUILT_IN.phone("Pixel 9")) is None


def test_of_two_files_the_later_one_wins(tmp_path: Path) -> None:
    later = copy.deepcopy(OWN)
    later["phones"][1]["bandwidth"]["value"] = 7e10
    found = catalogue(written(OWN, tmp_path, "a.json"), written(later, tmp_path, "b.json"))
    fact = found.bandwidth(found.phone("Pixel 9"))
    assert fact is not None and fact.value == 7e10


def test_a_file_may_have_the_mark_of_windows_editors(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(OWN).encode())
    assert catalogue(path).phone("mine").name == "My phone"


def test_the_built_in_file_is_a_users_file_too(tmp_path: Path) -> None:
    again = catalogue(written(RAW, tmp_path))
    assert again.phones == BUILT_IN.phones and len(again.decode) == 2 * len(BUILT_IN.decode)


def refused(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        catalogue(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line and "the guide on devices" in line
    return line


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["format"], "other", "is no device file"),
        (["schema"], 2, "schema version is 2; this foredraft reads 1"),
        (["schema"], True, "schema version is True"),
        (["phone"], [], "it has the unknown key 'phone'; did you mean 'phones'?"),
        (["phones"], {}, "phones is {}, not a list"),
        (["phones", 0, "bandwith"], None, "phones[0] has the unknown key 'bandwith'; did you mean 'bandwidth'?"),
        (["phones", 0, "name"], "", "phones[0].name is '', not a text of printable characters"),
        (["phones", 0, "name"], "a\nb", r"phones[0].name is 'a\nb', not a text of printable characters"),
        (["phones", 0, "name"], "--", "phones has the name or alias '--', which has no letter or digit"),
        (["phones", 0, "name"], "pixel 9", "phones has 'Pixel-9' or one of its aliases twice"),
        (["phones", 0, "chip"], "CX2", "My phone has the unknown chip 'CX2'; known: Chip X, A14"),
        (["phones", 0, "system"], "iOs", "phones[0].system is 'iOs', not one of iOS, iPadOS, Android"),
        (["phones", 0, "memory", "value"], 0, "phones[0].memory.value is 0.0, not more than 0; write null"),
        (["phones", 0, "memory", "value"], float("nan"), "phones[0].memory.value is nan, not a finite number"),
        (["phones", 0, "memory", "value"], -1, "phones[0].memory.value is -1"),
        (["phones", 0, "memory", "value"], "6 GB", "phones[0].memory.value is '6 GB', not a finite number"),
        (["phones", 0, "memory"], 6442450944, "phones[0].memory is 6442450944, not an object"),
        (["phones", 0, "memory", "mark"], "guess", "memory.mark is 'guess', not one of measured, published, computed"),
        (["phones", 0, "memory", "source"], "  ", "phones[0].memory.source is '  ', not a text"),
        (["phones", 0, "memory", "date"], "2026-13", "date is '2026-13', not a date such as 2026, 2026-11 or"),
        (["phones", 0, "memory", "date"], "yesterday", "date is 'yesterday'"),
        (["phones", 0, "memory", "date"], "2026-02-30", "date is '2026-02-30'"),
        (["limits", 0, "device"], "Pixle 9", "a row is about 'Pixle 9', which is no device"),
        (["limits", 0, "bytes"], 3.5, "limits[0].bytes is 3.5, not a whole number"),
        (["limits", 0, "system_from"], "iOS 26", "limits[0].system_from is 'iOS 26', not numbers with dots"),
        (["limits", 0, "entitlement"], "yes", "limits[0].entitlement is 'yes', not true or false"),
        (["decode", 0, "processor"], "TPU", "decode[0].processor is 'TPU', not one of CPU, GPU, NPU"),
        (["chips", 0, "aliases"], ["\ud800"], r"chips[0].aliases[0] is '\ud800', not a text"),
    ],
)
def test_each_fault_is_named(place: list[Any], value: object, words: str, tmp_path: Path) -> None:
    data = copy.deepcopy(OWN)
    inner: Any = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert words in refused(written(data, tmp_path))


@pytest.mark.parametrize("key", ["value", "mark", "source", "date"])
def test_a_number_without_its_origin_is_refused(key: str, tmp_path: Path) -> None:
    data = copy.deepcopy(OWN)
    del data["phones"][0]["memory"][key]
    assert f"phones[0].memory.{key} is missing" in refused(written(data, tmp_path))


def test_files_that_are_no_device_file(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    assert "no such file" in refused(path)
    assert "is not a file" in refused(tmp_path)
    for text in (b"", b"{", b"\xff\xfe", b"[" * 5000, b"[]", b"null", b'{"a": 1}', b"1" * 5000, b'{"format": []}'):
        path.write_bytes(text)
        refused(path)
    path.write_bytes(b" " * (1 << 20) + b"{}")
    assert "is larger than 1024 KiB" in refused(path)


def _places(data: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*above, key), *_places(value, (*above, key)))]


PLACES = _places(OWN)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_any_change_is_read_or_refused(place: tuple[Any, ...], value: Any, tmp_path_factory: Any) -> None:
    data = copy.deepcopy(OWN)
    inner: Any = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    _usable_or_refused(json.dumps(data).encode(), tmp_path_factory.getbasetemp() / "changed-devices.json")


@given(at=st.integers(0, 1500), new=st.binary(max_size=8), cut=st.integers(0, 8))
def test_any_damage_is_read_or_refused(at: int, new: bytes, cut: int, tmp_path_factory: Any) -> None:
    text = json.dumps(OWN).encode()
    _usable_or_refused(text[:at] + new + text[at + cut :], tmp_path_factory.getbasetemp() / "damaged-devices.json")


@given(data=st.dictionaries(st.sampled_from([*OWN, "other"]), ANYTHING))
def test_any_document_is_read_or_refused(data: dict[str, Any], tmp_path_factory: Any) -> None:
    document = {"format": FORMAT, "schema": 1, **data}
    _usable_or_refused(json.dumps(document).encode(), tmp_path_factory.getbasetemp() / "any-devices.json")


def _usable_or_refused(text: bytes, path: Path) -> None:
    """What is read answers every question; anything else is one line of the project's own error."""
    path.write_bytes(text)
    try:
        found = catalogue(path)
    except UsageError as error:
        line = str(error)
    else:
        line = ""
        _ask_everything(found)
    assert "\n" not in line


def _ask_everything(found: Catalogue) -> None:
    for phone in found.phones[:3]:
        assert found.phone(phone.name).name == phone.name
        found.bandwidth(phone)
        found.limits_of(phone, entitlement=True, system="26.1")
        assert all(row.device == phone.name for row in found.speeds_of(phone))
    with pytest.raises(UnknownName):
        found.phone("no such thing at all")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"phones": [{"name": "A", "memory": {"value": 8}}]}, "the memory of A is 8; give bytes: 8589934592 for 8 GiB"),
        ({"phones": [{"name": "A", "bandwidth": {"value": 51.2}}]}, "the bandwidth of A is 51.2; give bytes/s: 51.2e9"),
        ({"chips": [{"name": "C", "bandwidth": {"value": 51.2}}]}, "the bandwidth of C is 51.2"),
        ({"limits": [{"device": "Pixel 8", "bytes": 3376, "mark": "measured", "source": "s", "date": "2026"}]}, "3376"),
    ],
)
def test_gigabytes_are_not_taken_for_bytes(tmp_path: Path, part: dict[str, Any], message: str) -> None:
    for thing in (*part.get("phones", ()), *part.get("chips", ())):
        for fact in (value for value in thing.values() if isinstance(value, dict)):
            fact |= {"mark": "measured", "source": "s", "date": "2026"}
    path = tmp_path / "devices.json"
    path.write_text(json.dumps({"format": "foredraft-devices", "schema": 1, **part}))
    with pytest.raises(ProfileError, match=re.escape(message)):
        catalogue(path)
