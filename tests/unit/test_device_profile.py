"""Device profiles: what is written is read back, whatever is wrong is one line, and where they are kept."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.devices import DeviceProfile, ModelFacts, Rollback, Timing, machine, read_profile, write_profile
from foredraft.devices.kept import MAX_AGE, Subject, fingerprint, is_stale, model_facts, recall, remember
from foredraft.devices.verdict import judge, sentences
from foredraft.errors import InvalidValue, ModelFileError, UsageError
from tests.support import tiny_models
from tests.support.profiles import DRAFT, HERE, NOW, PROFILE, TARGET

JSON = json.loads(json.dumps(PROFILE.as_json()))


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "profile",
    [
        PROFILE,
        replace(PROFILE, drafts=(), rollback=Rollback(), widths=(1, 8), free_bytes=None, quick=True, notes=()),
        replace(PROFILE, machine=replace(HERE, memory_bytes=None), width_noise=(), tree_noise=(), hidden=True),
    ],
)
def test_what_is_written_is_read_back(profile: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(profile, path)
    assert read_profile(path) == profile
    assert os.listdir(tmp_path) == ["profile.json"]


def test_the_document_shows_what_follows_from_it(tmp_path: Path) -> None:
    data = PROFILE.as_json()
    assert data["schema"] == 1 and data["step_seconds"] == 0.02
    assert [timing["v"] for timing in data["curve"]] == pytest.approx([1.0, 1.05, 1.2, 1.6, 2.6, 4.6])
    assert data["drafts"][0]["cost"] == pytest.approx(0.22)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(PROFILE, path)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_profile(replace(PROFILE, took=float("nan")), path)
    with pytest.raises(InvalidValue, match="in a directory that exists"):
        write_profile(PROFILE, tmp_path)
    assert read_profile(path) == PROFILE
    assert os.listdir(tmp_path) == ["profile.json"]


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_profile(path)
    line = str(caught.value)
    assert line.startswith(str(path)) and "\n" not in line and "foredraft doctor" in line
    return line


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["schema"], 2, "schema version is 2; this foredraft reads 1"),
        (["schema"], True, "schema version is True"),
        (["format"], "other", "is no device profile"),
        (["took"], float("nan"), "took is nan, not a finite number from 0 on"),
        (["took"], float("inf"), "took is inf"),
        (["took"], -1, "took is -1"),
        (["took"], 10**400, "took is 1000"),
        (["took"], True, "took is True"),
        (["took"], "1", "took is '1'"),
        (["free_bytes"], -5, "free_bytes is -5, not a whole number from 0 on"),
        (["free_bytes"], 1.5, "free_bytes is 1.5"),
        (["tree"], 1, "tree is 1, not true or false"),
        (["curve"], [], r"curve has the widths [], not ascending ones from 1"),
        (["curve"], {}, "curve is {}, not a list"),
        (["curve", 0, "width"], 2, "curve has the widths [2, 2, 4, 8, 16, 32]"),
        (["curve", 2, "width"], 2, "curve has the widths [1, 2, 2, 8, 16, 32]"),
        (["curve", 3, "seconds"], 0, "curve at width 8 has no time or no runs"),
        (["curve", 3, "seconds"], -0.5, "curve[3].seconds is -0.5"),
        (["curve", 3, "runs"], 0, "curve at width 8 has no time or no runs"),
        (["curve", 3], 7, "curve[3] is 7, not an object"),
        (["drafts", 0, "passes", 0, "width"], 3, "drafts[0].passes has the widths [3, 4]"),
        (["drafts", 0, "model", "name"], None, "drafts[0].model.name is None, not a text"),
        (["rollback", "chain"], float("nan"), "rollback.chain is nan"),
        (["machine", "cpus"], "4", "machine.cpus is '4'"),
        (["versions", "foredraft"], 1, "versions.'foredraft' is 1, not a text"),
        (["versions"], [], "versions is [], not an object"),
        (["target", "name"], "x" * 5000, "target.name is 'xxx"),
        (["widths"], [], "widths is [], not a list of positive widths"),
        (["widths"], [0], "widths is [0]"),
        (["date"], "yesterday", "date is 'yesterday', not an ISO 8601 date"),
        (["date"], "2026-03-01T12:00:00", "date is '2026-03-01T12:00:00', not an ISO 8601 date and time with its zone"),
        (["threads"], 0, "threads, context are 0, 256"),
    ],
)
def test_each_fault_is_named(place: list[Any], value: object, words: str, tmp_path: Path) -> None:
    data = copy.deepcopy(JSON)
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data))
    assert words in refused(path)


@pytest.mark.parametrize("name", ["date", "machine", "curve", "rollback", "tree", "took", "settings"])
def test_a_missing_value_is_named(name: str, tmp_path: Path) -> None:
    data = PROFILE.as_json()
    del data[name]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data))
    assert f"{name} is missing" in refused(path)


def test_files_that_are_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert "no such file" in refused(path)
    assert "is not a file" in refused(tmp_path)
    for text in (b"", b"{", b"\xff\xfe", b"[" * 5000, b"[]", b"null", b'{"a": 1}', b"1" * 5000):
        path.write_bytes(text)
        refused(path)
    path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(UsageError, match="is larger than 1024 KiB"):
        read_profile(path)


@pytest.mark.parametrize("width", [5000, 10**15])
def test_widths_have_an_end(width: int, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(replace(PROFILE, curve=(*PROFILE.curve, Timing(width, 1.0, 0.0, 1))), path)
    assert "not ascending ones from 1 to 4096" in refused(path)


def _places(data: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*above, key), *_places(value, (*above, key)))]


PLACES = _places(JSON)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_any_change_is_read_or_refused(place: tuple[Any, ...], value: Any, tmp_path_factory: Any) -> None:
    data = copy.deepcopy(JSON)
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    _usable_or_refused(json.dumps(data).encode(), tmp_path_factory.getbasetemp() / "changed.json")


@given(at=st.integers(0, 4000), new=st.binary(max_size=8), cut=st.integers(0, 8))
def test_any_damage_is_read_or_refused(at: int, new: bytes, cut: int, tmp_path_factory: Any) -> None:
    text = json.dumps(JSON).encode()
    damaged = text[:at] + new + text[at + cut :]
    _usable_or_refused(damaged, tmp_path_factory.getbasetemp() / "damaged.json")


def _usable_or_refused(text: bytes, path: Path) -> None:
    """What is read gives priors and a verdict in words; anything else is one line."""
    path.write_bytes(text)
    try:
        profile = read_profile(path)
    except UsageError as error:
        line = str(error)
    else:
        line = ""
        _check_usable(profile)
    assert "\n" not in line


def _check_usable(profile: DeviceProfile) -> None:
    priors = profile.as_priors()
    assert priors.curve(1) == 1.0 and priors.step_seconds is not None and priors.step_seconds > 0
    assert all(sentence.words for sentence in sentences(profile, judge(profile)))


# --- priors ------------------------------------------------------------------------------------------------


def test_priors_hold_the_measured_curve_and_the_sources_in_order() -> None:
    priors = PROFILE.as_priors()
    assert priors.measured and priors.step_seconds == 0.02
    assert priors.curve.widths == (1, 2, 4, 8, 16, 32)
    assert priors.curve(1) == 1.0 and priors.curve(8) == pytest.approx(1.6) and priors.curve(6) == pytest.approx(1.4)
    assert list(priors.sources) == ["ngram", "model"]
    assert priors.sources["ngram"].cost is None
    assert priors.sources["model"].cost == pytest.approx(0.22)


def test_priors_name_only_the_drafters_in_use() -> None:
    assert list(PROFILE.as_priors(("model",)).sources) == ["model"]
    assert list(PROFILE.as_priors(("ngram",)).sources) == ["ngram"]
    assert list(replace(PROFILE, drafts=()).as_priors().sources) == ["ngram"]
    assert not PROFILE.as_priors(()).sources


# --- where they are kept -----------------------------------------------------------------------------------


def about(**changes: Any) -> Subject:
    values = {
        "target": TARGET,
        "drafts": (DRAFT,),
        "threads": 4,
        "settings": {},
        "versions": {"a": "1"},
        "machine": HERE,
    }
    return Subject(**{**values, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"target": replace(TARGET, fingerprint="ends-9")},
        {"target": replace(TARGET, engine="executorch")},
        {"drafts": ()},
        {"drafts": (DRAFT, DRAFT)},
        {"threads": 2},
        {"settings": {"strict": "yes"}},
        {"versions": {"a": "2"}},
        {"machine": replace(HERE, processor="Another")},
        {"machine": replace(HERE, cpus=2)},
    ],
)
def test_the_key_changes_with_what_a_profile_depends_on(change: dict[str, Any]) -> None:
    assert about(**change).key != about().key


def test_the_key_does_not_change_with_a_name() -> None:
    assert about(target=replace(TARGET, name="renamed.gguf")).key == about().key


def test_a_kept_profile_is_recalled_until_it_is_stale(empty_cache: Path) -> None:
    subject = about()
    assert recall(subject, NOW, quick=True) is None
    path = remember(subject, PROFILE)
    assert path == empty_cache / "profiles" / f"{subject.key}.json"
    assert recall(subject, NOW, quick=False) == PROFILE
    assert recall(subject, NOW + MAX_AGE, quick=False) == PROFILE
    assert recall(subject, NOW + MAX_AGE + timedelta(seconds=1), quick=True) is None
    assert recall(about(threads=1), NOW, quick=True) is None
    assert is_stale(PROFILE, NOW - timedelta(days=2)) and not is_stale(PROFILE, NOW - timedelta(hours=12))


def test_a_quick_profile_is_not_enough_for_a_full_one(empty_cache: Path) -> None:
    remember(about(), replace(PROFILE, quick=True))
    assert recall(about(), NOW, quick=False) is None
    assert recall(about(), NOW, quick=True) is not None


def test_a_damaged_kept_profile_is_as_good_as_none(empty_cache: Path) -> None:
    remember(about(), PROFILE)
    about().path.write_text(about().path.read_text()[:200])
    assert recall(about(), NOW, quick=True) is None


def test_a_cache_that_cannot_be_written_costs_the_profile_only(empty_cache: Path) -> None:
    (empty_cache / "profiles").write_text("in the way")
    assert remember(about(), PROFILE) is None


def test_fingerprints_tell_files_apart(tmp_path: Path) -> None:
    """A hash over size, first and last MiB: a change at either end or of the size shows."""
    first = tmp_path / "a.gguf"
    body = bytes(range(256)) * (3 << 12)  # 3 MiB
    first.write_bytes(body)
    seen = {fingerprint(first)}
    for name, data in {
        "front": b"x" + body[1:],
        "back": body[:-1] + b"x",
        "longer": body + b"x",
        "short": b"x",
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        seen.add(fingerprint(path))
    assert len(seen) == 5
    (tmp_path / "copy.gguf").write_bytes(body)
    assert fingerprint(tmp_path / "copy.gguf") == fingerprint(first)
    with pytest.raises(ModelFileError, match="cannot be read"):
        fingerprint(tmp_path / "missing.gguf")


def test_fingerprints_of_directories(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = fingerprint(tmp_path)
    assert model_facts(tmp_path, "pytorch") == ModelFacts(tmp_path.name, before, "pytorch", 7)
    (tmp_path / "config.json").write_text("{ }")
    changed = fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert len({before, changed, fingerprint(tmp_path)}) == 3


def test_facts_of_a_gguf(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "llama.gguf")
    facts = model_facts(path, "llama_cpp")
    assert (facts.name, facts.bytes, facts.engine) == ("llama.gguf", path.stat().st_size, "llama_cpp")


def test_this_machine() -> None:
    here = machine.this_machine()
    assert here.cpus >= 1 and here.processor and here.system and here.architecture
    free = machine.free_memory()
    assert free is None or free > 0
    found = machine.versions("llama_cpp", "scripted")
    assert list(found) == ["foredraft", "llama-cpp-python"]
