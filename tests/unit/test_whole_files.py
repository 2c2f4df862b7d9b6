"""A file is there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foredraft.errors import InvalidValue
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


def test_what_cannot_be_a_file_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "no" / "a.txt", tmp_path, tmp_path / "pipe", Path("/dev/null"), Path(""), Path("\0")):
        with pytest.raises(InvalidValue, match="in a directory that exists"):
            write_whole(path, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"] and (tmp_path / "pipe").is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
