"""What devices allow, what is proposed when a plan does not fit, and what a fleet file says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.devices.estimate import Weights, estimate
from foredraft.devices.phones import catalogue
from foredraft.errors import InvalidValue
from foredraft.memory import size
from foredraft.plan import (
    Allowance,
    Alphas,
    Bound,
    Candidate,
    Planned,
    Question,
    Setting,
    allowance,
    given_allowance,
    plan_device,
    read_fleet,
    view,
)
from foredraft.plan.fleet import FleetError
from foredraft.plan.options import HEAD, plan
from foredraft.plan.picture import picture, segments
from foredraft.plan.planner import flaw, sentence, warnings
from foredraft.plan.sizes import read_size
from foredraft.shapes import read_shape

GIB, MIB = 1 << 30, 1 << 20
TARGET, DRAFT = read_shape("llama-3.2-3b@q4_k_m"), read_shape("llama-3.2-1b@q4_k_m")
SMALL = replace(read_shape("smollm2-135m@q4_0"), vocab_size=128256)
QUESTION = Question(TARGET, (Candidate("1b", DRAFT), Candidate("135m", SMALL)), Setting(4096))


def phone(name: str, *, entitlement: bool = False, system: str | None = None) -> Allowance:
    known = catalogue()
    return allowance(known, known.phone(name), entitlement=entitlement, system=system)


# --- what a device allows ----------------------------------------------------------------------------------


def test_the_lowest_limit_seen_binds() -> None:
    found = phone("iPhone 15 Pro")
    assert found.binding == found.bounds[0]
    assert (found.bounds[0].nbytes, found.bounds[0].guess) == (3376 * MIB, False)
    assert "yangKJ/Harbeth" in found.bounds[0].origin
    assert found.bounds[1] == Bound("share of the memory", int(0.6 * 8 * GIB), found.bounds[1].origin, guess=True)


def test_the_entitlement_lifts_the_limit_and_memory_still_binds() -> None:
    found = phone("iPhone 15 Pro", entitlement=True)
    assert found.binding is not None and found.binding.name == "share of the memory"
    assert found.entitled is None
    without = phone("iPhone 15 Pro").entitled
    assert without is not None and without.binding == found.binding


def test_android_has_a_share_and_no_limit() -> None:
    found = phone("Pixel 8")
    assert [bound.name for bound in found.bounds] == ["share of the memory"]
    assert found.bounds[0].nbytes == 4 * GIB


def test_where_nobody_measured_a_like_phone_stands_in_as_a_guess() -> None:
    found = phone("iPhone 16")
    assert found.bounds[0].guess and "as on iPhone 15 Pro" in found.bounds[0].origin


def test_an_unknown_memory_stays_unknown() -> None:
    found = phone("Galaxy S24")
    assert found.bounds == () and found.binding is None
    planned = plan_device(QUESTION, found, None)
    assert planned.asked.fits is None and planned.changes == ()
    assert "memory is not known; give --available" in sentence(planned)


def test_versions_of_the_system_matter() -> None:
    old, new = phone("iPad with 8 GB", system="26.1"), phone("iPad with 8 GB", system="26.4")
    assert [each.bounds[0].nbytes for each in (old, new)] == [6_000_000_000, 3_000_000_000]


def test_own_rows_win_even_if_they_are_higher(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    row = {"device": "iPhone 15 Pro", "bytes": 4 * GIB, "mark": "measured", "source": "our app", "date": "2026-10-01",
           "entitlement": False}  # fmt: skip
    path.write_text(json.dumps({"format": "foredraft-devices", "schema": 1, "limits": [row]}))
    known = catalogue(path)
    found = allowance(known, known.phone("iPhone 15 Pro"), entitlement=False)
    assert found.bounds[0].nbytes == 4 * GIB and "our app" in found.bounds[0].origin


@pytest.mark.parametrize(("nbytes", "memory"), [(GIB, 2), (int(2.4 * GIB), 4), (3 * GIB, 6), (20 * GIB, None)])
def test_which_device_would_do(nbytes: int, memory: int | None) -> None:
    assert Allowance("phone", (), "iOS").needs(nbytes) == memory


def test_a_device_that_has_the_memory_is_not_told_to_have_it() -> None:
    assert phone("Pixel 8").needs(3 * GIB) is None
    assert phone("Pixel 8").needs(5 * GIB) == 12
    assert phone("iPhone 15 Pro", entitlement=True).needs(int(5.2 * GIB)) == 12
    assert phone("iPhone 15 Pro").needs(4 * GIB) is None  # its limit is in the way, not its memory


# --- answers -----------------------------------------------------------------------------------------------


def answer(nbytes: int, question: Question = QUESTION, alphas: Alphas | None = None) -> Planned:
    drafts = {each.name: float(each.nbytes) for each in question.drafts if each.shape is not None}
    weights = Weights(question.target.weight_bytes, drafts | {HEAD: float(Candidate.head(question.target).nbytes)})
    device = estimate(catalogue(), "OnePlus 12", weights)
    asked = replace(question, alphas=alphas) if alphas is not None else question
    return plan_device(asked, given_allowance("phone", nbytes, "Android"), device)


def test_what_fits_is_said_with_what_is_left() -> None:
    planned = answer(8 * GIB)
    assert planned.asked.fits and planned.changes == ()
    assert planned.asked.room == 8 * GIB - planned.asked.plan.total
    assert sentence(planned).startswith(f"fits: {size(planned.asked.plan.total)} of 8.00 GiB (memory given)")


def test_every_single_change_that_helps_is_listed_the_fastest_first() -> None:
    total = answer(8 * GIB).asked.plan.total
    planned = answer(total - 60 * MIB)
    assert planned.asked.fits is False
    assert {change.words for change in planned.changes} == {
        "the draft's keys and values as q8_0",
        "keys and values as q8_0 instead of f16",
        "a context of 3584 tokens instead of 4096",
        "135m as the draft instead of 1b",
        "a shared-weight head instead of a draft model",
        "copies from the text (n-gram) instead of a draft model",
        "no draft",
    }
    assert all(change.choice.fits for change in planned.changes)
    speeds = [change.choice.forecast.tokens_per_second for change in planned.changes if change.choice.forecast]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) == len(planned.changes)


def test_the_longest_context_that_fits_is_found() -> None:
    total = answer(8 * GIB).asked.plan.total
    for missing in (1, 60 * MIB, 200 * MIB):
        bound = total - missing
        change = next(each for each in answer(bound).changes if each.words.startswith("a context"))
        context = int(change.words.split()[3])
        assert context % 256 == 0 and change.choice.plan.total <= bound
        longer = plan(TARGET, QUESTION.drafts[0], replace(QUESTION.setting, context=context + 256))
        assert longer.total > bound


def test_a_change_that_does_not_help_is_not_listed() -> None:
    total = answer(8 * GIB).asked.plan.total
    words = {change.words for change in answer(total - 250 * MIB).changes}
    assert "the draft's keys and values as q8_0" not in words  # 60 MiB
    assert "keys and values as q8_0 instead of f16" in words and "no draft" in words


def test_together_where_no_single_change_is_enough() -> None:
    bound = TARGET.weight_bytes + 600 * MIB
    planned = answer(bound)
    assert planned.changes == ()
    assert planned.enough and planned.enough[-1].choice.fits
    assert not any(change.choice.fits for change in planned.enough[:-1])
    totals = [change.choice.plan.total for change in planned.enough]
    assert totals == sorted(totals, reverse=True)


def test_together_everything_is_tried_before_the_target_is_too_large() -> None:
    setting = replace(QUESTION.setting, chunk=2048, rows=512, sequences=4)
    planned = answer(TARGET.weight_bytes // 2, replace(QUESTION, setting=setting))
    assert planned.changes == () and not planned.enough[-1].choice.fits
    assert [change.words for change in planned.enough] == [
        "keys and values as q8_0 instead of f16",
        "135m as the draft",
        "copies from the text (n-gram) instead of a draft model",
        "prompts in chunks of 64 tokens",
        "4 positions verified at once",
        "one request at a time",
        "a context of 512 tokens",
    ]


def test_together_the_entitlement_comes_first() -> None:
    target = read_shape("qwen2.5-3b@q8_0")
    planned = plan_device(Question(target, (Candidate("none"),), Setting(4096)), phone("iPhone 15"), None)
    assert planned.changes == ()
    assert planned.enough[0].words == "Apple's increased-memory-limit entitlement" and planned.enough[-1].choice.fits


def test_the_largest_and_the_fastest_may_differ() -> None:
    planned = answer(8 * GIB, alphas=Alphas({"1b": 0.75, "135m": 0.6}))
    assert planned.largest is not None and planned.largest.candidate.name == "1b"
    assert planned.recommended is not None and planned.recommended.candidate.name == "135m"
    better = answer(8 * GIB, alphas=Alphas({"1b": 0.97, "135m": 0.2}))
    assert better.recommended is not None and better.recommended.candidate.name == "1b"


def test_no_draft_is_recommended_where_none_pays() -> None:
    planned = answer(8 * GIB, alphas=Alphas(default=0.05))
    assert planned.recommended is not None and planned.recommended.forecast is not None
    assert planned.recommended.forecast.speedup == 1.0 and planned.recommended.forecast.length == 0


def test_copies_have_no_speed_until_somebody_measures() -> None:
    [copies] = [each.forecast for each in answer(8 * GIB).choices if each.candidate.name == "ngram"]
    assert copies is not None and not copies.known and copies.break_even is not None
    [known] = [
        each.forecast for each in answer(8 * GIB, alphas=Alphas({"ngram": 0.8})).choices
        if each.candidate.name == "ngram"
    ]  # fmt: skip
    assert known is not None and known.known and known.speedup > 1.5


def test_what_cannot_be_planned_is_warned_of() -> None:
    assert warnings(Question(TARGET, (Candidate("1b", DRAFT),), Setting(4096))) == []
    short = replace(DRAFT, context_length=2048, recurrent=True, state_bytes=None)
    found = warnings(Question(TARGET, (Candidate("1b", short),), Setting(4096)))
    assert found == [
        "1b was made for 2048 tokens of context, not 4096",
        "1b keeps a state of a kind whose size is not known here; it is not counted",
    ]


def test_a_draft_with_other_words_is_never_recommended() -> None:
    other = Candidate("135m", replace(SMALL, vocab_size=49152))
    assert flaw(TARGET, other) == "135m has 49152 tokens, the target 128256: it cannot draft for it"
    assert flaw(TARGET, Candidate("1b", replace(DRAFT, vocab_size=128256 + 128))) is None
    question = Question(TARGET, (other, Candidate("1b", DRAFT)), Setting(4096))
    planned = answer(8 * GIB, question, Alphas({"135m": 0.9, "1b": 0.9}))
    assert planned.largest is not None and planned.largest.candidate.name == "1b"
    assert planned.recommended is not None and planned.recommended.candidate.name == "1b"
    assert warnings(question) == [flaw(TARGET, other)]


# --- fleets ------------------------------------------------------------------------------------------------


def test_a_fleet_is_read_from_csv_and_json(tmp_path: Path) -> None:
    one, two, three = tmp_path / "a.csv", tmp_path / "b.json", tmp_path / "c.json"
    one.write_text("Share,Device\n20%,Pixel 8\n60,iPhone 15 Pro\n20,Pixel 8\n")
    two.write_text(json.dumps([{"device": "Pixel 8", "share": 0.4}, {"device": "iPhone 15 Pro", "share": 0.6}]))
    three.write_text(json.dumps([["Pixel 8", 2], ["iPhone 15 Pro", 3]]))
    for path in (one, two, three):
        shares = dict(read_fleet(path).shares)
        assert shares == pytest.approx({"Pixel 8": 0.4, "iPhone 15 Pro": 0.6})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line is empty; it must name device and share"),
        ("device\nPixel 8\n", "first line is device; it must name device and share"),
        ("device,share\n", "has 0 rows"),
        ("device,share\nPixel 8,x\n", "row 1 has the share 'x'; allowed: a number from 0 to 1e12"),
        ("device,share\nPixel 8,-1\n", "row 1 has the share '-1'"),
        ("device,share\nPixel 8,0\n", "all shares are 0"),
        ("device,share\n,3\n", "row 1 names no device"),
        ("[1]", "entry 1 has no device and share"),
        ("[[1, 2", "is not JSON"),
        ('[["Pixel 8", true]]', "row 1 has the share True"),
        ('[["Pixel 8", NaN]]', "row 1 has the share nan"),
        (f'[["Pixel 8", 1{"0" * 400}]]', "allowed: a number from 0 to 1e12"),
        ("device,share\nPixel 8,1e308\n", "allowed: a number from 0 to 1e12"),
    ],
)
def test_a_bad_fleet_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet"
    path.write_text(text)
    with pytest.raises(FleetError) as caught:
        read_fleet(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_other_bad_fleet_files(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="no such file"):
        read_fleet(tmp_path / "none.csv")
    with pytest.raises(FleetError, match="is no file"):
        read_fleet(tmp_path)
    (tmp_path / "latin").write_bytes(b"device,share\nTel\xe9fono,1\n")
    with pytest.raises(FleetError, match="not UTF-8"):
        read_fleet(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(FleetError, match="larger than 1024 KiB"):
        read_fleet(tmp_path / "large")


def test_the_share_of_users_and_the_quartile_devices(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("device,share\nsmall,30\nmiddle,30\nlarge,30\nnobody knows,10\n")
    bounds = {"small": GIB, "middle": 4 * GIB, "large": 8 * GIB}
    fleet = read_fleet(path)
    found = [answer(bounds[name]) if name in bounds else None for name, _ in fleet.shares]
    seen = view(fleet, found)
    assert (seen.fits, seen.misses, seen.unknown) == pytest.approx((0.6, 0.3, 0.1))
    assert seen.quartiles == ((25, "small"), (50, "middle"), (75, "large"))
    assert seen.unknown_devices == ("nobody knows",)
    with pytest.raises(InvalidValue):
        view(fleet, found[:2])


# --- small parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nbytes"), [("3.1GiB", round(3.1 * GIB)), ("3100 MiB", 3100 * MIB), ("6GB", 6_000_000_000), ("7b", 7)]
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert read_size("--available", text) == nbytes


@pytest.mark.parametrize("text", ["3.1", "GiB", "-1GiB", "3.1G", "1e9B", "", "nanGB", "3,1GiB"])
def test_a_size_without_its_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="--available"):
        read_size("--available", text)


def test_the_picture_holds_all_bytes_and_escapes_names() -> None:
    planned = answer(3 * GIB)
    assert sum(segments(planned.asked.plan)) == planned.asked.plan.total
    strange = replace(planned, allowance=replace(planned.allowance, device="<script>alert(1)</script>"))
    page = picture(QUESTION, [strange])
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert page.count("<svg") == 1 and "does not fit" in page


def test_a_draft_inherits_neither_chunk_nor_cache_type() -> None:
    """Cases H3 and H4: its own cache type, and at most 64 tokens at once."""
    setting = replace(QUESTION.setting, kv_type="q8_0", draft_kv_type="f16", chunk=2048)
    made = plan(TARGET, QUESTION.drafts[0], setting)
    alike = plan(TARGET, QUESTION.drafts[0], replace(setting, draft_kv_type=None))
    assert made.of(part="draft", name="keys and values") > alike.of(part="draft", name="keys and values")
    assert made.of(part="draft", name="compute buffer") < 16 * MIB < made.of(part="target", name="compute buffer")


def test_an_export_keeps_its_own_bounds_and_runtime() -> None:
    program = replace(SMALL, source="export", arena_bytes=5 * MIB, pass_width=8, pass_rows=4)
    made = plan(program, Candidate("none"), Setting(512, "executorch", "f32", rows=64, chunk=512))
    assert made.of(name="compute buffer") == 5 * MIB
    mixed = plan(TARGET, Candidate("export", program), Setting(512))
    assert {line.name for line in mixed.lines if line.part == "app"} >= {"runtime (llama_cpp)", "runtime (executorch)"}
