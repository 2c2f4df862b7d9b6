"""Decoders with fewer layers: the right ones go, each candidate is scored as the pruned decoder would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft.errors import InvalidValue
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.hf_write import write_hugging_face
from foredraft.models.load import load_decoder
from foredraft.train.batch import Rotation, causal
from foredraft.train.batches import Corpus
from foredraft.train.losses import overlap
from foredraft.train.prune import Removal, TargetScore, draft_rows, first_layers, keep_layers, pruned, sample
from tests.support import tiny_torch, tiny_training
from tests.support.gguf_writer import tiny_metadata, write_gguf
from tests.support.tiny_training import TARGET, VOCAB, made

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
LOCAL = replace(TARGET, architecture="gemma2", qkv_bias=False, post_norms=True, activation="gelu_tanh", layers=5)
LOCAL = replace(LOCAL, embed_scale=TARGET.hidden_size**0.5, window=3)
LOCAL = replace(LOCAL, local=(True, False, True, False, True), attention_softcap=20.0, final_softcap=5.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tiny_training.corpus(tmp_path_factory.mktemp("data"))


def with_idle(config: DecoderConfig, idle: Sequence[int]) -> Decoder:
    """Layers of ``idle`` add nothing to the stream."""
    decoder = made(config)
    with torch.no_grad():
        for layer in idle:
            decoder.blocks[layer].attention.out.weight.zero_()
            decoder.blocks[layer].ffn.down.weight.zero_()
    return decoder


@dataclass
class Likeness:
    """Score: how near logits are to those of a whole decoder."""

    decoder: Decoder
    batches: list[Tensor]
    calls: int = 0

    @property
    def places(self) -> int:
        return sum(batch.numel() for batch in self.batches)

    def of(self, batch: int, last: Tensor) -> float:
        self.calls += 1
        assert not last.requires_grad
        whole = run(self.decoder, self.batches[batch])
        return -float((self.decoder.logits(last) - self.decoder.logits(whole)).abs().mean(-1).sum().detach())


def run(decoder: Decoder, tokens: Tensor) -> Tensor:
    angles = Rotation(decoder.config, decoder.embedding.weight, tokens.shape[1]).at(torch.arange(tokens.shape[1])[None])
    with torch.no_grad():
        last: Tensor = decoder.hidden(tokens, angles, causal(decoder.config))[-1]
    return last


def batches(count: int = 2) -> list[Tensor]:
    random = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCAB, (2 + number, 7), generator=random) for number in range(count)]


# --- taking layers out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TARGET, replace(TARGET, tied=True), LOCAL], ids=["untied", "tied", "gemma2"])
def test_with_all_layers_it_is_the_same_model(config: DecoderConfig) -> None:
    decoder = made(config)
    whole = pruned(decoder, range(config.layers))
    assert whole.config == config and not whole.training
    for name, value in decoder.state_dict().items():
        assert torch.equal(whole.state_dict()[name], value)
    np.testing.assert_array_equal(tiny_torch.forward(whole, TEXT), tiny_torch.forward(decoder, TEXT))


@given(st.sets(st.integers(0, 4), min_size=1))
def test_layers_keep_their_window_when_others_go(chosen: set[int]) -> None:
    layers = tuple(sorted(chosen))
    decoder = made(LOCAL)
    small = pruned(decoder, layers)
    idle = with_idle(LOCAL, [layer for layer in range(5) if layer not in layers])
    np.testing.assert_allclose(tiny_torch.forward(small, TEXT), tiny_torch.forward(idle, TEXT), rtol=1e-5, atol=1e-5)
    if any(layer % 2 == 0 for layer in layers):
        assert small.config.window == 3 and small.config.local == tuple(layer % 2 == 0 for layer in layers)
    else:
        assert small.config.window is None and small.config.local == ()


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_trained_is_a_copy_and_the_rest_is_shared(tied: bool) -> None:
    target = made(replace(TARGET, tied=tied))
    before = {name: value.clone() for name, value in target.state_dict().items()}
    draft = first_layers(target, 2)
    assert draft.config == replace(target.config, layers=2)
    assert draft.embedding.weight.data_ptr() == target.embedding.weight.data_ptr()
    assert draft.head.weight.data_ptr() == target.head.weight.data_ptr()
    assert (draft.head.weight is draft.embedding.weight) == tied
    assert torch.equal(draft.norm.weight, target.norm.weight)
    with torch.no_grad():
        for module in (draft.blocks, draft.norm):
            for weight in module.parameters():
                weight.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_the_first_layers_are_those_of_the_target() -> None:
    target = made(TARGET)
    tokens = batches()[0]
    angles = Rotation(TARGET, target.embedding.weight, 7).at(torch.arange(7)[None])
    tapped, _ = target.hidden(tokens, angles, causal(TARGET), (1,))
    assert torch.equal(run(first_layers(target, 2), tokens), tapped)


def test_a_pruned_decoder_is_written_and_read(tmp_path: Path) -> None:
    decoder = pruned(made(LOCAL), (1, 2, 4))
    vocab = write_gguf(tmp_path / "vocab.gguf", tiny_metadata(VOCAB))
    write_hugging_face(decoder, vocab, tmp_path / "small", "float32")
    found = load_decoder(tmp_path / "small")
    assert found.config == decoder.config and found.config.local == (False, True, True)
    assert all(torch.equal(value, decoder.state_dict()[name]) for name, value in found.state_dict().items())


@pytest.mark.parametrize("count", [0, 5, -1])
def test_how_many_may_stay(count: int) -> None:
    decoder = made(TARGET)
    message = rf"layers to keep is {count}; allowed: 1 to 4, the model's"
    with pytest.raises(InvalidValue, match=message):
        first_layers(decoder, count)
    with pytest.raises(InvalidValue, match=message):
        keep_layers(decoder, count, Likeness(decoder, batches()))


# --- choosing them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", [(0,), (2, 3), (0, 1, 3), ()])
def test_layers_that_do_nothing_go(idle: tuple[int, ...]) -> None:
    decoder = with_idle(TARGET, idle)
    score = Likeness(decoder, batches())
    told: list[Removal] = []
    kept = keep_layers(decoder, TARGET.layers - len(idle), score, told.append)
    assert kept.layers == tuple(layer for layer in range(TARGET.layers) if layer not in idle)
    assert kept.removals == tuple(told) == tuple(Removal(layer, 0.0) for layer in idle)
    assert kept.whole == 0.0


@pytest.mark.parametrize("config", [TARGET, LOCAL], ids=["qwen2", "gemma2"])
def test_each_removal_is_the_best_by_brute_force(config: DecoderConfig) -> None:
    decoder = made(config)
    score = Likeness(decoder, batches())

    def mean(layers: Sequence[int]) -> float:
        small = pruned(decoder, layers)
        return sum(score.of(number, run(small, tokens)) for number, tokens in enumerate(score.batches)) / score.places

    kept = keep_layers(decoder, 1, score)
    left = list(range(config.layers))
    for removal in kept.removals:
        candidates = {layer: mean([one for one in left if one != layer]) for layer in left}
        assert removal.score == pytest.approx(candidates[removal.layer], abs=1e-5)
        assert removal.score == pytest.approx(max(candidates.values()), abs=1e-5)
        left.remove(removal.layer)
    assert kept.layers == tuple(left) and len(left) == 1


def test_the_search_costs_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = made(replace(TARGET, layers=6))
    score = Likeness(pruned(decoder, range(6)), batches(1))
    passes = []
    for block in decoder.blocks:
        block.register_forward_hook(lambda *_: passes.append(1))
    keep_layers(decoder, 3, score)
    assert len(passes) == 6 + sum(m * (m + 1) // 2 for m in (4, 5, 6))
    assert score.calls == 1 + 4 + 5 + 6


# --- the score --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [tuple(range(VOCAB)), tuple(range(0, VOCAB, 3))], ids=["all", "some"])
def test_the_score_is_the_overlap_of_the_laws(ids: tuple[int, ...], corpus: Corpus) -> None:
    """Against the laws of both decoders, written out."""
    target, draft = tiny_training.target(), made(tiny_training.DRAFT, 3)
    texts = corpus.texts["validation"][:3]
    score = TargetScore(draft, tiny_training.frozen(ids), texts)
    total, places = 0.0, 0
    for number, text in enumerate(texts):
        first, end = text.text.prompt_tokens - 1, len(text.text) - 1
        p = torch.from_numpy(tiny_torch.forward(target, text.text.ids)[first:end]).softmax(-1)[:, list(ids)]
        q = torch.from_numpy(tiny_torch.forward(draft, text.text.ids)[first:end])[:, list(ids)].log_softmax(-1)
        want = float(overlap(q, p).sum())
        assert score.of(number, run(draft, torch.tensor([text.text.ids]))) == pytest.approx(want, abs=2e-2)
        total, places = total + want, places + end - first
    assert score.places == places
    assert keep_layers(draft, 2, score).whole == pytest.approx(total / places, abs=1e-2)


def test_a_decoder_agrees_best_with_itself(corpus: Corpus) -> None:
    """A target with idle layers loses those, and nothing of its score."""
    target = pruned(tiny_training.target(), range(TARGET.layers))
    with torch.no_grad():
        for layer in (1, 2):
            target.blocks[layer].attention.out.weight.zero_()
            target.blocks[layer].ffn.down.weight.zero_()
    score = TargetScore(target, tiny_training.frozen(), corpus.texts["validation"][:4])
    kept = keep_layers(target, 2, score)
    assert kept.layers == (0, 3) and kept.removals[-1].score == kept.whole
    assert 0.5 < kept.whole < 1.0


def test_a_draft_that_lacks_tokens() -> None:
    draft = made(replace(tiny_training.DRAFT, vocab_size=VOCAB - 2))
    with pytest.raises(
        InvalidValue, match=r"a token id of the draft vocabulary is 39; allowed: below 38, what the draft"
    ):
        draft_rows(draft, torch.arange(VOCAB))
    assert draft_rows(draft, torch.arange(VOCAB - 2)).weight.data_ptr() == draft.head.weight.data_ptr()


def test_a_sample_is_small_and_always_the_same(corpus: Corpus) -> None:
    texts: Any = corpus.texts["train"]
    for tokens in (30, 100, 1000):
        chosen = sample(texts, tokens)
        assert chosen == sample(texts, tokens) and 0 < sum(len(text.text) for text in chosen) <= tokens
    assert sum(len(text.text) for text in sample(texts, 1000)) > 950
    assert [len(text.text) for text in sample(texts, 5)] == [min(len(text.text) for text in texts)]
    assert len(sample(texts, 1 << 20)) == len(texts)
