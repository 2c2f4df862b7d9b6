"""``foredraft plan`` as its user sees it: one device, all devices, a fleet, documents, the picture, one-line errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.devices.kept import model_facts
from foredraft.devices.measured import write_profile
from foredraft.profile.report.shape import ALL
from tests.support import profiles, tiny_models
from tests.support.command_line import Foredraft, in_process
from tests.support.summaries import summary

BOTH = ("--target", "llama-3.2-3b@q4_k_m", "--draft", "llama-3.2-1b@q4_k_m")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foredraft:
    return in_process(monkeypatch, capsys, "plan")


def document(run: Foredraft, *arguments: str | Path) -> dict[str, Any]:
    _, out, _ = run(*arguments, "--json")
    found: dict[str, Any] = json.loads(out)
    return found


def test_one_device_in_full(run: Foredraft) -> None:
    code, out, err = run(*BOTH, "--device", "iphone 15 pro", "--rule-of-fit")
    assert (code, err) == (1, "")
    for words in (
        "iPhone 15 Pro: llama-3.2-3b q4_k_m (1.87 GiB of weights) with llama-3.2-1b@q4_k_m, 4096 tokens of context",
        "28 layers × 8 KV heads × (128 + 128) × 4096 tokens as f16",
        "does not fit: 343 MiB more than 3.30 GiB (limit of one app)",
        "yangKJ/Harbeth",
        "rule of fit (weights and caches alone): 3.18 GiB, which fits; all together it is 3.63 GiB: the rule misleads",
        "each of these alone makes it fit:",
        "Apple's increased-memory-limit entitlement",
        "copies from the text (n-gram) instead of a draft model: 2.70 GiB",
    ):
        assert words in out, words
    assert run(*BOTH, "--device", "iPhone 15 Pro", "--entitlement")[0] == 0


def test_all_devices_in_one_table(run: Foredraft) -> None:
    code, out, _ = run(*BOTH)
    assert code == 0
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "does not fit" in rows["iPhone 12 mini"] and "several" in rows["iPhone 12 mini"]
    assert "~4.00 GiB" in rows["Pixel 8"] and " fits" in rows["Pixel 8"]
    assert "est." in rows["OnePlus 12"]
    assert "Galaxy S24" not in rows  # nobody knows its memory


def test_a_fleet(run: Foredraft, tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("device,share\niPhone 12 mini,20\nPixel 8,30\nOnePlus 12,40\nno such phone,7\nGalaxy S24,3\n")
    code, out, _ = run(*BOTH, "--fleet", path)
    assert code == 0
    assert "fits on 70 % of your users, not on 20 %, unknown for 10 %; p25 device is Pixel 8; p50 device is" in out
    assert "unknown device" in out
    found = document(run, *BOTH, "--fleet", path)["fleet"]
    assert found["fits"] == pytest.approx(0.7) and found["unknown_devices"] == ["no such phone", "Galaxy S24"]


def test_the_reference_budget_on_three_devices(run: Foredraft, tmp_path: Path) -> None:
    """7B and 1B at 4 bits with .4 and .1 GB of cache: a pool of 6 GB holds them, Androids with 4 and 6 GiB do not."""
    models = (
        "--params", "7B", "--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "32",
        "--weights", "int4",
        "--draft", "params=1B,layers=16,hidden=2048,heads=32,kv-heads=32,head-size=64,weights=int4",
        "--ctx", "2048", "--kv-type", "q5_1",
    )  # fmt: skip
    code, out, _ = run(*models, "--device", "iPhone 17 Pro", "--available", "6GB", "--rule-of-fit")
    assert code == 0 and "rule of fit (weights and caches alone): 4.19 GiB" in out  # 4.5 GB
    path = tmp_path / "phones.json"
    fact = {"mark": "measured", "source": "made up", "date": "2026-11"}
    phones = [
        {"name": f"Android {memory}", "system": "Android", "memory": {"value": memory << 30, **fact}}
        for memory in (4, 6)
    ]
    path.write_text(json.dumps({"format": "foredraft-devices", "schema": 1, "phones": phones}))
    found = document(run, *models, "--device-file", path, "--device", "Android 4", "--device", "Android 6")
    assert [each["choices"][0]["fits"] for each in found["devices"]] == [False, False]
    assert [each["needs_gib"] for each in found["devices"]] == [12, 12]
    plan = found["devices"][0]["plan"]
    sizes = {(line["part"], line["name"]): line["bytes"] for line in plan["lines"]}
    parts = [sizes[part, name] / 1e9 for part in ("draft", "target") for name in ("weights", "keys and values")]
    assert [round(part, 1) for part in parts] == [0.5, 0.1, 3.5, 0.4] and round(sum(parts), 1) == 4.5


def test_candidates_from_a_directory_and_a_profile(run: Foredraft, tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "two.gguf", 2)
    tiny_models.write_llama(tmp_path / "six.gguf", 6)
    (tmp_path / "target").mkdir()
    target = tiny_models.write_llama(tmp_path / "target" / "eight.gguf", 8)
    found = document(
        run, "--target", target, "--candidates", tmp_path, "--device", "OnePlus 12", "--alpha", "two.gguf=0.9"
    )["devices"][0]
    names = [choice["draft"] for choice in found["choices"]]
    assert names == ["six.gguf", "two.gguf", "ngram", "none"]
    assert (found["largest"], found["recommended"]) == ("six.gguf", "two.gguf")
    forecasts = {choice["draft"]: choice["forecast"] for choice in found["choices"]}
    assert (forecasts["two.gguf"]["alpha"], forecasts["six.gguf"]["alpha_origin"]) == (0.9, "assumed")


def test_acceptance_from_a_profile(run: Foredraft, tmp_path: Path) -> None:
    made = summary()
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(made))
    settings = made["settings"]
    [alpha] = [
        row["alpha"]["value"]
        for row in made["acceptance"]
        if (row["draft"], row["kind"]) == ("ngram", ALL)
        and (row["rule"], row["temperature"]) == (settings["rule"], settings["temperature"])
    ]
    for where in (path, tmp_path):
        found = document(run, *BOTH, "--device", "OnePlus 12", "--profile", where)["devices"][0]
        [copies] = [choice["forecast"] for choice in found["choices"] if choice["draft"] == "ngram"]
        assert copies["alpha"] == pytest.approx(alpha) and copies["alpha_origin"].startswith("measured on your prompts")


def test_the_picture_is_written(run: Foredraft, tmp_path: Path) -> None:
    code, _, _ = run(*BOTH, "--device", "Pixel 8", "--device", "iPhone 15 Pro", "--html", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert code == 1 and page.count("<svg") == 2 and page.startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


def test_damaged_candidates_are_left_out_with_a_note(run: Foredraft, tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "good.GGUF")
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    code, out, err = run("--target", "llama-3.2-3b", "--candidates", tmp_path, "--device", "OnePlus 12")
    assert code == 0 and "good.GGUF" in out and "other words" in out
    assert "left out: " in err and "damaged.gguf" in err and "it cannot draft for it" in err
    (tmp_path / "good.GGUF").unlink()
    code, out, err = run("--target", "llama-3.2-3b", "--candidates", tmp_path)
    assert code == 2 and "models that can be read" in err


def test_a_measured_profile_gives_memory_and_speed(run: Foredraft, tmp_path: Path) -> None:
    target, draft = tiny_models.write_llama(tmp_path / "t.gguf", 6), tiny_models.write_llama(tmp_path / "d.gguf", 2)
    made = replace(
        profiles.with_curve({1: 1.0, 2: 1.2, 4: 1.4, 8: 1.9}),
        target=model_facts(target, "llama_cpp"),
        drafts=tuple(
            replace(one, model=model_facts(draft, "llama_cpp"))
            for one in profiles.with_curve({1: 1.0, 2: 1.2, 4: 1.4, 8: 1.9}).drafts[:1]
        ),
        free_bytes=4 << 30,
    )
    write_profile(made, tmp_path / "phone.json")
    models = ("--target", target, "--draft", draft, "--ctx", "512")
    found = document(run, *models, "--device", tmp_path / "phone.json")["devices"][0]
    assert found["bounds"][0]["bytes"] == 4 << 30
    forecasts = {choice["draft"]: choice["forecast"] for choice in found["choices"]}
    assert forecasts["d.gguf"]["estimated"] is False
    assert forecasts["none"]["tokens_per_second"] == pytest.approx(1 / made.step_seconds)
    other = document(run, "--target", "smollm2-135m@q4_0", "--device", tmp_path / "phone.json")["devices"][0]
    assert all(choice["forecast"] is None for choice in other["choices"]), "speeds of another target"


def test_names_of_one_device_are_one_row_of_a_fleet(run: Foredraft, tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("device,share\niPhone16,1,30\n")
    path.write_text('device,share\n"iPhone16,1",30\niPhone 15 Pro,20\nfleet.csv,50\n')
    code, out, _ = run(*BOTH, "--fleet", path)
    assert code == 0 and out.count("iPhone 15 Pro") >= 1 and "unknown for 50 %" in out
    rows = [line for line in out.splitlines() if line.startswith("iPhone 15 Pro")]
    assert len(rows) == 1 and "50.0%" in rows[0]


def test_a_local_file_and_a_long_context(run: Foredraft, smollm2: Path) -> None:
    code, out, err = run("--target", smollm2, "--device", "Pixel 8", "--ctx", "100000")
    assert code == 0 and "30 layers × 3 KV heads × (64 + 64) × 100096 tokens as f16" in out
    assert "was made for 8192 tokens of context, not 100000" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no target: give --target MODEL, or describe one with --params"),
        (("--target", "smollm2-135m", "--layers", "3"), "--target names a model and --layers describes one"),
        (("--target", "llama-9"), "no model named 'llama-9'; did you mean"),
        (("--target", "llama-3.2-1b@q9"), "q9"),
        (("--target", "llama-3.2-1b", "--device", "iPhone 99"), "no device is called 'iPhone 99'"),
        (("--target", "llama-3.2-1b", "--available", "3"), "a number with its unit: 3.1GiB"),
        (("--target", "llama-3.2-1b", "--alpha", "2"), "a number from 0 to 1"),
        (("--target", "llama-3.2-1b", "--alpha", "x=y"), "a number from 0 to 1"),
        (("--target", "llama-3.2-1b", "--fleet", "none.csv"), "none.csv: no such file"),
        (("--target", "llama-3.2-1b", "--requests", "0"), "--requests"),
        (("--target", "llama-3.2-1b", "--runtime", "executorch", "--kv-type", "q8_0"), "f32 with executorch"),
        (("--target", "llama-3.2-1b", "--candidates", "llama-3.2-1b,llama-3.2-1b"), "every draft once"),
        (("--target", "llama-3.2-1b", "--profile", "nowhere"), "nowhere"),
        (("--target", "llama-3.2-1b", "--device", "a", "--device", "b", "--available", "1GiB"), "name one --device"),
        (("--params", "7B"), "layers"),
        (("--target", "llama-3.2-1b", "--html", "nowhere/plan.html"), "--html is 'nowhere/plan.html'; allowed: a file"),
        (("--target", "llama-3.2-1b", "--html", ""), "--html is"),
        (("--target", "llama-3.2-1b", "--html", "/dev/null"), "--html is '/dev/null'"),
        (("--target", "llama-3.2-1b", "--alpha", "nobody=0.5"), "one of ngram, shared-weight head"),
        (("--target", "llama-3.2-1b", "--alpha", "0.5", "--alpha", "0.6"), "one number for all drafts"),
        (("--target", "llama-3.2-1b", "--device", "Pixel 8", "--device", "pixel-8"), "names Pixel 8 twice"),
        (("--target", "llama-3.2-1b", "--device", "x" * 300), "no device is called"),
        (("--target", "llama-3.2-1b", "--width", "65537"), "--width is 65537; allowed: 1 to 4096"),
        (("--target", "llama-3.2-1b", "--candidates", ","), "a directory of models, or names with commas"),
    ],
)
def test_mistakes_are_one_line(
    run: Foredraft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert code in (1, 2) and out == "" and message in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
