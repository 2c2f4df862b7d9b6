"""Large pages for a runtime's weights: asked for where Linux and glibc offer them, harmless elsewhere.

In processes of their own, because the C library's settings belong to the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foredraft.engines import huge_pages
from foredraft.engines.huge_pages import huge_heap

HELPERS = """
import sys, numpy as np
from foredraft.engines.huge_pages import huge_heap

def huge():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("AnonHugePages"))

def blocks(count):
    return [np.ones(3 << 20, np.uint8) for _ in range(count)]
"""


def printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", HELPERS + code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def offered() -> bool:
    return huge_pages._glibc() is not None and huge_pages._offered()


def test_blocks_lie_in_huge_pages_where_they_are_offered() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        with huge_heap(1 << 20) as asked:
            assert not asked
        return
    told, before, within = printed(
        "before = huge()\nwith huge_heap(96 << 20) as asked: kept = blocks(32)\nprint(asked, before, huge())"
    )
    assert told == str(offered())
    if offered():
        assert int(within) - int(before) >= 60, "most of 96 MB; the system may be out of huge pages for some"


def test_a_second_model_gets_its_share() -> None:
    if not offered():
        with huge_heap(1 << 20) as asked:
            assert not asked
        return
    first, second = map(
        int,
        printed(
            "with huge_heap(64 << 20): one = blocks(21)\n"
            "first = huge()\n"
            "with huge_heap(96 << 20): two = blocks(32)\n"
            "print(first, huge())"
        ),
    )
    assert second - first >= 60


def test_memory_is_not_used_before_it_is_needed() -> None:
    peak = printed(
        "import resource\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with huge_heap(1 << 30): pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    assert int(peak[0]) < (200 << 10), "a gigabyte was reserved, a page for each block touched (in KB on Linux)"


def test_other_threads_are_left_alone() -> None:
    found = printed(
        "import threading\n"
        "def work():\n"
        "    with huge_heap(64 << 20) as asked: print(asked)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    assert found == ["False"]


def test_an_exception_passes() -> None:
    assert printed("try:\n    with huge_heap(1 << 20): raise KeyError\nexcept KeyError: print('passed')") == ["passed"]


@pytest.mark.parametrize("words", ["always [madvise] never", "[always] madvise never", "always madvise [never]", None])
def test_only_where_one_has_to_ask(words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "enabled"
    if words is not None:
        switch.write_text(words)
    monkeypatch.setattr(huge_pages, "_SWITCH", switch)
    assert huge_pages._offered() is (words is not None and "[madvise]" in words)


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with huge_heap(1 << 20) as asked:
        assert not asked
