"""Reports without a browser: what is written, and that nothing breaks out of it."""

from __future__ import annotations

import base64
import copy
import doctest
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from foredraft.profile.report import (
    Summary,
    check_summary,
    load,
    markdown,
    page,
    read_summary,
    schema,
    to_markdown,
    to_page,
    words,
    write_report,
)
from tests.support.summaries import EVERYTHING, HOSTILE, ONE_DRAFT, Options, summary

SMALL = summary(ONE_DRAFT)
ASSETS = files("foredraft.profile.report").joinpath("assets")


@pytest.fixture(params=EVERYTHING, scope="module")
def each(request: pytest.FixtureRequest) -> Summary:
    return EVERYTHING[request.param]


@pytest.mark.parametrize("module", [load, markdown, page, schema, words])
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 0


# --- writing ---------------------------------------------------------------------------------------------------------


def test_what_is_written_reads_back(tmp_path: Path, each: Summary) -> None:
    paths = write_report(each, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile.json", "report.html", "report.md"]
    assert json.dumps(read_summary(tmp_path)) == json.dumps(each)
    assert paths[1].read_text("utf-8") == to_page(each) and paths[2].read_text("utf-8") == to_markdown(each)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    write_report(SMALL, tmp_path)
    before = (tmp_path / "profile.json").read_text("utf-8")
    damaged: Any = copy.deepcopy(SMALL)
    damaged["devices"][0]["fixed"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        write_report(damaged, tmp_path)
    assert (tmp_path / "profile.json").read_text("utf-8") == before and len(list(tmp_path.iterdir())) == 3


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of each script and style, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag in ("script", "style"):
            self.inline.append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within in ("script", "style"):
            self.inline[-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def test_nothing_breaks_out_of_the_page(each: Summary) -> None:
    """Whatever the summary says, the page has the elements of the template and no other."""
    found, usual = Elements(to_page(each)), Elements(to_page(SMALL))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in usual.tags]
    assert found.count("script") == 2 and found.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


def test_the_page_needs_nothing_else(each: Summary) -> None:
    text = to_page(each)
    found = Elements(text)
    assert not any(name in ("src", "href") for _, attributes in found.tags for name in attributes)
    own = "".join(path.read_text("utf-8") for path in ASSETS.iterdir() if path.name != "dom.js")
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML|insertAdjacent|document\.write|eval\(", own)
    assert re.findall(r"https?:[^\"]*", (ASSETS / "dom.js").read_text("utf-8")) == ["http://www.w3.org/2000/svg"]


def test_the_policy_lets_its_own_script_and_style_run(each: Summary) -> None:
    found = Elements(to_page(each))
    (policy,) = [attributes["content"] for _, attributes in found.tags if attributes.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    hashes = re.findall(r"'sha256-([^']+)'", policy)
    style, _, script = found.inline
    for text, expected in zip((style, script), hashes, strict=True):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() == expected
    assert "unsafe" not in policy


def test_the_page_holds_the_summary(each: Summary) -> None:
    data = json.loads(Elements(to_page(each)).inline[1])
    assert data["words"]["decisions"]["off"] == "Leave it off"
    for (left, right), at in leaves(data["summary"], json.loads(json.dumps(each)), ""):
        assert left == (pytest.approx(right, rel=1e-6) if isinstance(right, float) else right), at


def leaves(left: Any, right: Any, at: str) -> Iterator[tuple[tuple[Any, Any], str]]:
    if isinstance(right, dict | list):
        keys = list(right) if isinstance(right, dict) else list(range(len(right)))
        assert len(left) == len(right), at
        for key in keys:
            yield from leaves(left[key], right[key], f"{at}.{key}")
    else:
        yield (left, right), at


@given(st.text() | st.sampled_from(HOSTILE))
def test_embedded_text_is_harmless_and_comes_back(text: str) -> None:
    data = page.as_data({"text": text})
    assert data.isascii() and not set("<>&\n") & set(data)
    assert json.loads(data) == {"text": text}


def test_every_asset_is_used() -> None:
    assert {path.name for path in ASSETS.iterdir()} == {"page.html", "page.css", *page.SCRIPTS}


# --- Markdown --------------------------------------------------------------------------------------------------------


def test_markdown_of_a_small_profile_is_this() -> None:
    assert to_markdown(SMALL) == (Path(__file__).parent / "report_small.md").read_text("utf-8")


def test_markdown_takes_names_literally(each: Summary) -> None:
    """As rendered, it holds no foreign elements, and every row of a table as many cells as its head."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(to_markdown(each))
    found = {tag for tag, _ in Elements(rendered).tags}
    assert found <= {
        "h1",
        "h2",
        "h3",
        "p",
        "strong",
        "em",
        "ul",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
    }
    for body in rendered.split("<table>")[1:]:
        rows = [len(re.findall(r"<t[hd]", row)) for row in body.split("</table>")[0].split("<tr>")[1:]]
        assert len(set(rows)) == 1 and rows[0] > 1
    plain = summary(Options())
    assert rendered.count("<h2>") <= to_markdown(plain).count("\n## ")


@given(st.text() | st.sampled_from(HOSTILE))
def test_escaped_text_renders_as_itself(text: str) -> None:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(f"x {markdown.escaped(text)} y")
    inline = next(token for token in tokens if token.type == "inline")
    assert {child.type for child in inline.children or ()} <= {"text", "text_special"}


def test_what_is_missing_is_said() -> None:
    text = to_markdown(EVERYTHING["unknown"])
    assert "α is unknown: nothing was drafted" in text and "unknown |" in text and "| never |" in text
    assert "Drafting does not pay on any of the 3 devices." in text and "## Advice" not in text
    assert "*(estimated)*" in text
    hostile = to_markdown(EVERYTHING["hostile"])
    assert words.NO_LIVE in hostile and "\u202e" not in hostile and "\\u202eevil" in hostile.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("usual", "Drafting pays on 2 of 3 devices."),
        ("off everywhere", "Drafting does not pay on this device."),
        ("one of everything", "Drafting does not pay on this device."),
        ("without all", "Drafting pays on all 2 devices."),
    ],
)
def test_the_headline_counts_devices(name: str, sentence: str) -> None:
    assert words.headline(EVERYTHING[name]) == sentence


def test_a_device_without_a_verdict_over_all_kinds_has_its_first_one() -> None:
    made = copy.deepcopy(EVERYTHING["usual"])
    made["verdicts"] = [row for row in made["verdicts"] if row["kind"] == "chat"]
    assert [row["kind"] for row in words.overall(check_summary(made))] == ["chat"] * 3


# --- colours ---------------------------------------------------------------------------------------------------------

TEXT = ("ink", "soft", "accent", "good", "doubt", "bad", "s0", "s1", "s2", "s3", "s4", "s5")
GRAPHICS = ("axis", "focus", *TEXT)


def colours(style: str, opening: str) -> dict[str, str]:
    block = style.split(opening, 1)[1].split("}", 1)[0]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("opening", [":root {", "@media screen and (prefers-color-scheme: dark) {\n  :root {"])
def test_colours_can_be_read_in_both_modes(opening: str) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for what a picture needs."""
    found = colours((ASSETS / "page.css").read_text("utf-8"), opening)
    for ground in ("paper", "wash"):
        assert {
            name: contrast(found[name], found[ground]) for name in TEXT if contrast(found[name], found[ground]) < 4.5
        } == {}
        assert {name for name in GRAPHICS if contrast(found[name], found[ground]) < 3} == set()
    for ground in ("right-wash", "wrong-wash"):
        assert contrast(found["ink"], found[ground]) >= 4.5
    assert contrast(found["bad"], found["wrong-wash"]) >= 4.5 and contrast(found["good"], found["right-wash"]) >= 3
    assert contrast(found["paper"], found["accent"]) >= 4.5, "the rank within a filled node"
