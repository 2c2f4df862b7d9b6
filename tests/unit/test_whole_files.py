"""A file is there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.whole_files import replacing, write_whole


def test_a_file_is_written_as_utf_8_with_unix_line_ends(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "α\nβ\n")
    assert (tmp_path / "a.txt").read_bytes() == "α\nβ\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            assert path.read_text() == "old" and temporary.parent == path.parent
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old" and [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_a_directory_that_is_not_there_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "no" / "a.txt", "x")
