"""The report in real Chromium: everyone can read and use it, on any screen, and nothing breaks out of it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from foredraft.profile.report.shape import ALL
from tests.support.chromium import Open, Opened
from tests.support.summaries import EVERYTHING

USUAL = EVERYTHING["usual"]

# --- safe, offline, whole --------------------------------------------------------------------------------------------


def test_it_is_alone_and_content(phone: Opened) -> None:
    assert phone.faults == []
    assert len(phone.requests) == 1 and phone.requests[0].startswith("file://")
    assert phone.page.title().startswith("Profile of")
    body = phone.text("body")
    assert not re.search(r"\b(null|undefined|NaN|Infinity)\b|\[object", body)


def test_names_are_shown_as_they_are(open_page: Open) -> None:
    page = open_page(EVERYTHING["hostile"])
    assert "</script><script>document.title='pwned'</script>" in page.text("#over")
    assert page.page.title() == "Profile of </script><script>document.title='pwned'</script>"
    assert page.page.locator("img").count() == 0
    body = page.text("body")
    assert "[U+202E]evil[U+202C]" in body and "\u202e" not in body
    page.page.locator("details.sample summary").first.click()
    text = page.page.locator("details.sample").first.text_content() or ""
    assert "\ufffd" in text and "\u2400\u241b[31m" in text and "👩‍👩‍👧" in text


def test_without_javascript_the_facts_are_there(open_page: Open) -> None:
    page = open_page(USUAL, java_script_enabled=False)
    body = page.text("body")
    assert "# Profile of qwen2.5-coder-1.5b" in body and "Drafting pays on 2 of 3 devices." in body
    assert not page.page.locator("#report").is_visible()


def test_a_redacted_profile_says_so(open_page: Open) -> None:
    page = open_page(EVERYTHING["redacted"])
    assert page.text("#samples") == "This profile is redacted: it keeps statistics only, no text and no tokens."


def test_estimates_are_marked_wherever_their_device_is_named(open_page: Open) -> None:
    page = open_page(USUAL)
    assert page.page.locator("#device option").all_inner_texts() == [
        "this machine",
        "Pixel 8 Pro (estimated)",
        "Raspberry Pi 5",
    ]
    named = page.page.locator(":is(h3, th, li, p):has(> bdi:text-is('Pixel 8 Pro'))")
    marked = page.page.locator(":is(h3, th, li, p):has(> bdi:text-is('Pixel 8 Pro')):has(> em.tag)")
    assert named.count() == marked.count() >= 3
    page.page.locator("#device").select_option("Pixel 8 Pro")
    page.settle()
    assert page.text("#setting").startswith("Pixel 8 Pro estimated:")
    assert named.count() == marked.count() >= 7


def test_the_gate_is_beside_the_verdict_and_disagreement_stands_out(open_page: Open) -> None:
    page = open_page(EVERYTHING["many"])
    rows = page.page.locator("#devices > li")
    assert rows.count() == 5
    for verdict, row in zip(
        [each for each in EVERYTHING["many"]["verdicts"] if each["kind"] == ALL], rows.all(), strict=True
    ):
        words = row.inner_text()
        assert f"α {verdict['gate']['alpha']:.2f} {'passes' if verdict['gate']['passes'] else 'fails'}" in words
        assert ("but the verdict is different" in words) == (not verdict["gate"]["agrees"])
        assert f"{verdict['speedup']['value']:.2f}×" in words and verdict["reason"] in words
    assert page.page.locator("#kinds td:has-text('≠ gate')").count() == sum(
        not each["gate"]["agrees"] for each in EVERYTHING["many"]["verdicts"] if each["kind"] != ALL
    )


def test_samples_follow_the_draft_and_are_marked_beyond_colour(open_page: Open) -> None:
    page = open_page(USUAL)
    page.page.locator("#draft").select_option("smol-135m")
    page.settle()
    assert "smol-135m" in page.text("#samples")
    outcomes = [outcome for _, outcome in USUAL["samples"][0]["tokens"]]
    first = page.page.locator("details.sample").first
    for name, outcome in (("free", 0), ("right", 1), ("wrong", 2)):
        assert first.locator(f".token.{name}").count() == outcomes.count(outcome)
    style = "(node) => [getComputedStyle(node).borderBottomStyle, getComputedStyle(node, '::after').content]"
    assert first.locator(".token.right").first.evaluate(style)[0] == "solid"
    line, sign = first.locator(".token.wrong").first.evaluate(style)
    assert line == "dotted" and "×" in sign


# --- small screens, paper, the dark ----------------------------------------------------------------------------------

OUTSIDE = """() => [...document.querySelectorAll('#report *')].filter((node) =>
    node.checkVisibility() && !node.closest('.scroll > *') && !node.closest('.hidden-words')
    && node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 120))"""


def test_a_phone_never_scrolls_sideways(phone: Opened) -> None:
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert phone.page.evaluate(OUTSIDE) == []


def test_pictures_follow_the_width(open_page: Open) -> None:
    page = open_page(USUAL)
    wide = page.page.locator("figure svg").first.bounding_box()
    page.page.set_viewport_size({"width": 360, "height": 800})
    page.settle()
    narrow = page.page.locator("figure svg").first.bounding_box()
    assert wide and narrow and wide["width"] > 600 and 280 <= narrow["width"] <= 328
    size = "(node) => getComputedStyle(node).fontSize"
    assert page.page.locator("figure svg text").first.evaluate(size) == "12px", "text is not shrunk with the picture"


def test_paper_shows_everything_and_no_controls(open_page: Open) -> None:
    page = open_page(USUAL, color_scheme="dark")
    page.page.emulate_media(media="print")
    assert not page.page.locator("#controls").is_visible()
    hidden = """() => [...document.querySelectorAll('#report details > :not(summary)')].filter((node) =>
        !node.hidden && (!node.checkVisibility() || node.getBoundingClientRect().height === 0)).length"""
    assert page.page.evaluate("document.querySelectorAll('details:not([open])').length") > 5
    assert page.page.evaluate(hidden) == 0
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.page.pdf(format="A4").startswith(b"%PDF")


CONTRAST = """() => {
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faults = [];
  const walker = document.createTreeWalker(document.getElementById('report'), NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest('title, desc, .rank.first, datalist')) continue;
    seen += 1;
    const style = getComputedStyle(node);
    const [one, other] = [light(rgb(node instanceof SVGElement ? style.fill : style.color)), light(ground(node))];
    const found = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (found < 4.5) faults.push([node.outerHTML.slice(0, 100), found]);
  }
  return { seen, faults };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(open_page: Open, scheme: str) -> None:
    page = open_page(EVERYTHING["many"], color_scheme=scheme)
    page.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = page.page.evaluate(CONTRAST)
    assert found["seen"] > 500 and found["faults"] == []
    paper = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")


# --- keyboard and screen reader --------------------------------------------------------------------------------------


def test_the_keyboard_reaches_and_moves_every_control(open_page: Open) -> None:
    page = open_page(USUAL)
    keyboard, reached = page.page.keyboard, []
    for _ in range(40):
        keyboard.press("Tab")
        found = page.page.evaluate("""() => {
            const node = document.activeElement, style = getComputedStyle(node);
            return [node.id || node.className || node.tagName, style.outlineStyle, parseFloat(style.outlineWidth)];
        }""")
        if found[0] in ("BODY", "body"):
            break
        assert found[1] != "none" and found[2] >= 2, f"no visible focus on {found[0]}"
        reached.append(found[0])
    controls = ["device", "draft", "kind", "rule", "temperature", "length", "best-length", "reset"]
    assert [name for name in reached if name in controls] == controls
    assert reached.count("SUMMARY") >= 10, "figures' numbers and samples"
    before, length = page.text("#speedup"), int(page.text("#length-shown"))
    page.page.locator("#length").focus()
    keyboard.press("ArrowLeft")
    keyboard.press("ArrowLeft")
    assert page.text("#length-shown") == str(length - 2)
    assert page.text("#speedup") != before
    page.page.locator("#device").focus()
    keyboard.press("ArrowDown")
    assert page.text("#setting").startswith("Pixel 8 Pro")


HEADINGS = """[...document.querySelectorAll('h1,h2,h3,h4')].filter((each) => each.checkVisibility())
    .map((each) => Number(each.tagName[1]))"""
UNNAMED = """[...document.querySelectorAll('select,input')]
    .filter((each) => !each.labels.length || !each.labels[0].textContent.trim()).length"""
PICTURES = """[...document.querySelectorAll('svg:not([aria-hidden])')].map((svg) => [svg.getAttribute('role'),
    ...svg.getAttribute('aria-labelledby').split(' ').map((id) => document.getElementById(id)?.textContent ?? '')])"""


def test_headings_labels_and_pictures_have_names(phone: Opened) -> None:
    levels = phone.page.evaluate(HEADINGS)
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert phone.page.evaluate(UNNAMED) == 0
    pictures = phone.page.evaluate(PICTURES)
    assert pictures and all(role == "img" and title and text for role, title, text in pictures)
    ids = phone.page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    assert phone.page.locator("html").get_attribute("lang") == "en"


def test_every_picture_has_its_numbers_as_a_table(open_page: Open) -> None:
    page = open_page(USUAL)
    figures = page.page.locator("figure").all()
    headings = [figure.locator("h3").inner_text() for figure in figures]
    assert headings == ["Speed-up against K", "What a round costs and yields", "Drafts compared", "α by kind of prompt",
                        "Acceptance by depth", "The best tree"]  # fmt: skip
    for figure in figures:
        assert figure.locator("svg[role=img]").count() == 1
        figure.locator("summary").click()
        assert figure.locator("tbody tr").count() >= 3 and figure.locator("caption").inner_text()
    tree = next(
        row
        for row in USUAL["trees"]
        if row["draft"] == page.page.locator("#draft").input_value() and row["kind"] == ALL
    )
    assert figures[-1].locator("tbody tr").count() == len(tree["parents"])
    assert figures[-1].locator("circle").count() == len(tree["parents"])
