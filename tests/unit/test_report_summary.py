"""Profile summaries as files: what is read, and what is refused in one line that names it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from foredraft.errors import ProfileError
from foredraft.profile.report import Summary, check_summary, read_summary, schema, summary_schema
from tests.support.summaries import EVERYTHING, ONE_DRAFT, Options, summary


@pytest.fixture(params=EVERYTHING, scope="module")
def each(request: pytest.FixtureRequest) -> Summary:
    return EVERYTHING[request.param]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(summary_schema())


def test_every_summary_fits_the_schema_and_its_checks(each: Summary) -> None:
    assert check_summary(each) is each
    small = copy.deepcopy(each)
    del small["acceptance"][5:], small["predictions"][5:], small["trees"][5:]
    Draft202012Validator(summary_schema()).validate(json.loads(json.dumps(small)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats(-2, 2) | st.sampled_from(["", "ship", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "low", "name"]), inner),
    max_leaves=4,
)


@given(st.data())
def test_the_checker_agrees_with_the_reference(data: st.DataObject) -> None:
    """Any part replaced by anything, or left out: both let it through, or both do not."""
    document: Any = json.loads(json.dumps(summary(TINY)))
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(VALUES)
    else:
        del place[key]
    fault = schema.first_fault(document, summary_schema())
    assert (fault is None) == Draft202012Validator(summary_schema()).is_valid(document), fault


TINY = Options(
    kinds=("chat",),
    drafts=ONE_DRAFT.drafts,
    devices=ONE_DRAFT.devices,
    temperatures=(0.0,),
    rules=("coupled",),
    longest=2,
)


def broken(**changes: Any) -> dict[str, Any]:
    """A good document with something else at each path, such as ``devices__0__name``."""
    document: Any = json.loads(json.dumps(summary(Options(kinds=("code", "chat"), temperatures=(0.0, 0.8)))))
    for path, value in changes.items():
        place = document
        *above, last = [int(key) if key.isdigit() else key for key in path.split("__")]
        for key in above:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return document  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "foredraft-bench"}, "no profile summary (no format 'foredraft-profile')"),
        ({"schema": 2}, "schema version is 2; this release reads version 1"),
        ({"devices": []}, "devices is a list of 0; allowed: a list of at least 1"),
        ({"verdicts": ...}, "verdicts is missing; allowed: a list"),
        ({"devices__0__step_seconds": 0}, "devices[0].step_seconds is 0; allowed: a number above 0"),
        ({"devices__1__estimated": "yes"}, "devices[1].estimated is 'yes'; allowed: true or false"),
        (
            {"devices__0__draft_cost__ngram": -1},
            "devices[0].draft_cost['ngram'] is -1; allowed: a number of at least 0",
        ),
        ({"acceptance__0__alpha__value": 1.2}, "acceptance[0].alpha.value is 1.2; allowed: a number of at least 0"),
        ({"verdicts__0__decision": "go"}, "allowed: 'ship' or 'ship_by_kind' or 'better_draft' or 'off'"),
        ({"samples__0__tokens__3": ["a"]}, "samples[0].tokens[3] is a list of 1; allowed: a list of 2"),
        ({"samples__0__tokens__3": ["a", 3]}, "samples[0].tokens[3][1] is 3; allowed: 0 or 1 or 2"),
        ({"settings__target": ""}, "settings.target is ''; allowed: a text of at least 1 character"),
        ({"kinds__1__name": "code"}, "kinds[1] is 'code'; allowed: a kind of its own"),
        ({"kinds__1__name": "all"}, "a kind of its own, not all"),
        ({"acceptance__0__draft": "x"}, "acceptance[0].draft is 'x'; allowed: one of 'ngram', "),
        ({"verdicts__0__device": "x"}, "verdicts[0].device is 'x'; allowed: one of 'this machine', "),
        ({"settings__rule": "relaxed"}, "settings.rule is 'relaxed'; allowed: one of 'coupled', 'residual'"),
        ({"longest": 7}, "acceptance[0].expected is a list of 8; allowed: a list of 7"),
        ({"predictions__0__best__length": 9}, "predictions[0].best.length is 9; allowed: at most 8"),
        ({"temperatures": [0.8, 0.0]}, "temperatures is [0.8, 0.0]; allowed: ascending numbers, each once"),
        (
            {"devices__0__verify__widths": [2, 4, 8, 16]},
            "devices[0].verify.widths is [2, 4, 8, ...]; allowed: ascending",
        ),
        ({"devices__0__verify__values": [1.0]}, "devices[0].verify.values is a list of 1; allowed: a list of 4"),
        ({"devices__0__draft_cost": {"ngram": 0}}, "devices[0].draft_cost is without "),
        ({"trees__0__parents": [0]}, "trees[0].parents is [0]; allowed: each parent before its children"),
        ({"verdicts__0__speedup__low": None}, "verdicts[0].speedup is {"),
        ({"acceptance__0__alpha__low": 1.0}, "allowed: low ≤ high, or null for both"),
        ({"settings__redacted": True}, "allowed: none, since the profile is redacted"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError) as found:
        check_summary(broken(**changes))
    assert words in str(found.value) and "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def test_a_cell_may_not_come_twice() -> None:
    document = broken()
    document["verdicts"].append(document["verdicts"][0])
    with pytest.raises(ProfileError, match="each kind × device once"):
        check_summary(document)
    document["verdicts"] = [row for row in document["verdicts"] if row["device"] != "Pixel 8 Pro"]
    with pytest.raises(ProfileError, match="without the device 'Pixel 8 Pro'"):
        check_summary(document)


@pytest.mark.parametrize("document", [None, [], "x", 3, {}])
def test_what_is_no_summary_is_refused(document: object) -> None:
    with pytest.raises(ProfileError, match=r"give a profile\.json"):
        check_summary(document)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b'{"format": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe{", "cannot be read as JSON"),
        (b"[" * 200_000, "cannot be read as JSON"),
        (b"[1]", "no profile summary"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(content)
    with pytest.raises(ProfileError, match=re.escape(f"{file}: ")) as found:
        read_summary(file)
    assert words in str(found.value) and "\n" not in str(found.value)
    with pytest.raises(ProfileError, match=words):
        read_summary(tmp_path)


def test_a_missing_file_says_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no such file; `foredraft profile -o DIR` writes DIR/profile\.json"):
        read_summary(tmp_path / "nowhere.json")
