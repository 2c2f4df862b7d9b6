"""Whole small models trained on a target's laws: what they learn, and which of their weights change."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.errors import MissingExtra
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.hf_write import write_hugging_face
from foredraft.models.load import load_decoder
from foredraft.train.batches import Corpus
from foredraft.train.draft import BEST, Draft, DraftSettings
from foredraft.train.lora import add_adapters, merge_adapters
from foredraft.train.losses import Loss, overlap
from foredraft.train.prune import first_layers, pruned
from tests.support import tiny_torch, tiny_training
from tests.support.gguf_writer import tiny_metadata, write_gguf
from tests.support.tiny_training import (
    DRAFT,
    LONG,
    SHORT,
    VOCAB,
    assert_equal,
    frozen,
    made,
    ran,
    target,
    trainer,
    weights,
)  # fmt: skip

with warnings.catch_warnings():  # what peft imports has deprecations of its own
    warnings.simplefilter("ignore")
    import peft

SOME = tuple(range(0, VOCAB, 2))
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tiny_training.corpus(tmp_path_factory.mktemp("data"))


# --- learning ---------------------------------------------------------------------------------------------------------


CASES: dict[str, tuple[DraftSettings, tuple[int, ...]]] = {
    "lk": (LONG, tuple(range(VOCAB))),
    "kl": (replace(LONG, loss="kl"), tuple(range(VOCAB))),
    "some tokens": (LONG, SOME),
    "adapters": (replace(LONG, rank=8, learning_rate=2e-2), tuple(range(VOCAB))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_draft_learns_what_the_target_says(case: str, tmp_path: Path, corpus: Corpus) -> None:
    settings, ids = CASES[case]
    one = trainer(tmp_path, corpus, settings, ids=ids)
    events = ran(one)
    before, after = events[0].measured, events[-1].measured
    assert before is not None and after is not None and one.loop.best == after
    assert (events[0].step, events[0].loss, events[-1].step) == (0, None, settings.steps)
    losses = [event.loss for event in events if event.loss is not None]
    assert losses[-1] < 0.5 * losses[0]
    assert before.covered == after.covered
    assert after.overlap[0] > before.overlap[0] + 0.3 * after.covered
    assert after.greedy[0] > before.greedy[0] + 0.3 * after.covered
    assert after.accepted > 2 * before.accepted
    assert one.loop.measured("test").accepted > 2 * before.accepted


GEMMA = replace(
    DRAFT, architecture="gemma2", qkv_bias=False, activation="gelu_tanh", post_norms=True, embed_scale=24**0.5,
    window=6, local=(True, False), attention_softcap=20.0, final_softcap=20.0,
)  # fmt: skip


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [DRAFT, GEMMA], ids=lambda config: config.architecture)
def test_other_families_and_half_precision(
    config: DecoderConfig, precision: torch.dtype, tmp_path: Path, corpus: Corpus
) -> None:
    one = trainer(tmp_path, corpus, replace(LONG, steps=30), made(config, 1, 0.5), precision=precision)
    events = ran(one)
    assert events[-1].measured is not None and events[0].measured is not None
    assert events[-1].measured.accepted > 1.5 * events[0].measured.accepted
    assert {weight.dtype for weight in one.decoder.parameters()} == {torch.float32}


def test_the_loss_is_that_of_the_two_laws_written_out(corpus: Corpus) -> None:
    texts = corpus.texts["train"][:5]
    cases: tuple[tuple[Loss, tuple[int, ...]], ...] = (("lk", tuple(range(VOCAB))), ("lk", SOME), ("kl", SOME))
    for kind, ids in cases:
        draft = Draft(made(DRAFT, 1), frozen(ids), replace(SHORT, loss=kind), 64)
        found = float(draft.loss(texts).detach())
        shares = [by_hand(draft.decoder, text.text.ids, text.text.prompt_tokens, ids, kind) for text in texts]
        assert found == pytest.approx(float(torch.cat(shares).mean()), abs=5e-3)


def by_hand(
    decoder: Decoder, ids: Sequence[int], prompt: int, chosen: Sequence[int], kind: str = "overlap"
) -> torch.Tensor:
    """Loss or Σ min(p, q) at each place of one answer."""
    places = slice(prompt - 1, len(ids) - 1)
    p = torch.from_numpy(tiny_torch.forward(target(), ids)[places]).softmax(-1)[:, list(chosen)]
    log_q = torch.from_numpy(tiny_torch.forward(decoder, ids)[places])[:, list(chosen)].log_softmax(-1)
    if kind == "kl":
        return (p * (p.log() - log_q)).sum(-1)
    return -overlap(log_q, p).log() if kind == "lk" else overlap(log_q, p)


def test_what_is_measured_is_what_a_chain_would_get(corpus: Corpus) -> None:
    texts = [text for text in corpus.texts["validation"] if text.text.temperature == 0][:4]
    draft = Draft(made(DRAFT, 1), frozen(SOME), SHORT, 64)
    found = draft.measured([texts[:3], texts[3:]])
    hits, shares, covered = [], [], []
    for text in texts:
        ids, prompt = text.text.ids, text.text.prompt_tokens
        guesses = np.array(SOME)[tiny_torch.forward(draft.decoder, ids)[:, SOME].argmax(-1)]
        same, share = guesses == text.best.numpy(), by_hand(draft.decoder, ids, prompt, SOME)
        law = torch.from_numpy(tiny_torch.forward(target(), ids)).softmax(-1)[:, list(SOME)].sum(-1)
        for place in range(prompt - 1, len(ids) - SHORT.depth):
            hits.append(same[place : place + SHORT.depth])
            shares.append(share[place - prompt + 1 :][: SHORT.depth])
            covered.append(law[place])
    chain = np.array(hits).cumprod(-1)
    reached = np.concatenate([np.ones((len(hits), 1)), chain[:, :-1]], 1)
    assert found.tokens == len(hits) and found.accepted == pytest.approx(chain.sum(-1).mean())
    assert found.greedy == pytest.approx(chain.sum(0) / np.maximum(reached.sum(0), 1e-9))
    assert found.overlap == pytest.approx(torch.stack(shares).mean(0).tolist(), abs=1e-2)
    assert found.covered == pytest.approx(float(torch.stack(covered).mean()), abs=1e-2)


def test_recomputing_changes_nothing_but_memory(corpus: Corpus) -> None:
    gradients = []
    for recompute in (False, True):
        draft = Draft(made(DRAFT, 1), frozen(), replace(SHORT, recompute=recompute), 64)
        draft.loss(corpus.texts["train"][:5]).backward()
        gradients.append({name: weight.grad for name, weight in draft.trained().items()})
    assert_equal(*gradients)


# --- what is trained --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_output_matrix_stay(tied: bool, tmp_path: Path, corpus: Corpus) -> None:
    decoder = made(replace(DRAFT, tied=tied), 1)
    before = weights(decoder)
    one = trainer(tmp_path, corpus, SHORT, decoder)
    ran(one)
    changed = {name for name, value in decoder.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == before.keys() - {"embedding.weight", "head.weight"}
    assert (decoder.head.weight is decoder.embedding.weight) == tied


def test_a_draft_cut_out_of_the_target_leaves_the_target_alone(tmp_path: Path, corpus: Corpus) -> None:
    before = weights(target())
    one = trainer(tmp_path, corpus, SHORT, first_layers(target(), 2))
    ran(one)
    assert_equal(weights(target()), before)
    assert one.decoder.head.weight.data_ptr() == target().head.weight.data_ptr()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_target_in_half_precision_lends_its_matrices_as_they_are(rank: int, tmp_path: Path, corpus: Corpus) -> None:
    half = pruned(target(), range(4)).to(torch.bfloat16)
    draft = first_layers(half, 2)
    one = trainer(tmp_path, corpus, replace(SHORT, rank=rank), draft)
    ran(one)
    found = one.best_decoder()
    assert {name: weight.dtype for name, weight in found.named_parameters() if weight.dtype != torch.float32} == {
        "embedding.weight": torch.bfloat16,
        "head.weight": torch.bfloat16,
    }
    assert found.embedding.weight.data_ptr() == half.embedding.weight.data_ptr()
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


def test_adapters_are_all_that_changes_and_merge_into_the_same_logits(tmp_path: Path, corpus: Corpus) -> None:
    decoder = made(DRAFT, 1)
    before = weights(decoder)
    one = trainer(tmp_path, corpus, replace(SHORT, rank=2, scale=4.0), decoder)
    names = set(one.loop.weights())
    assert len(names) == 2 * 4 * DRAFT.layers and all("lora_" in name for name in names)
    start = tiny_torch.forward(decoder, TEXT)
    np.testing.assert_array_equal(start, tiny_torch.forward(made(DRAFT, 1), TEXT))  # B begins as zeros
    ran(one)
    state = {name.replace(".base_layer", ""): value for name, value in decoder.state_dict().items()}
    assert all(torch.equal(value, before[name]) for name, value in state.items() if "lora_" not in name)
    one.loop.load(torch.load(tmp_path / BEST, weights_only=True)["weights"])
    with_adapters = tiny_torch.forward(decoder, TEXT)
    assert np.abs(with_adapters - start).max() > 0.1
    merged = one.best_decoder()
    assert merged.state_dict().keys() == before.keys()
    np.testing.assert_allclose(tiny_torch.forward(merged, TEXT), with_adapters, rtol=1e-4, atol=1e-4)
    assert not any(weight.requires_grad for weight in merged.parameters())


def test_adapters_are_those_of_peft() -> None:
    """W + scale·B·A, A by the seed; and what has none is merged into itself."""
    decoder = made(DRAFT, 1)
    before = weights(decoder)
    torch.manual_seed(5)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    add_adapters(decoder, 2, 3.0, seed=1)
    assert torch.equal(torch.rand(1), drawn)  # the caller's random numbers are not used up
    layer = decoder.blocks[1].ffn.down
    assert isinstance(layer, peft.tuners.lora.LoraLayer)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        b.normal_()
    merge_adapters(decoder)
    want = before["blocks.1.ffn.down.weight"] + 3.0 * b @ a
    torch.testing.assert_close(decoder.blocks[1].ffn.down.weight, want)
    assert_equal(weights(decoder) | {"blocks.1.ffn.down.weight": before["blocks.1.ffn.down.weight"]}, before)
    merge_adapters(decoder)
    torch.testing.assert_close(decoder.blocks[1].ffn.down.weight, want)


def test_a_pruned_draft_is_trained_written_and_read(tmp_path: Path, corpus: Corpus) -> None:
    small = pruned(made(replace(DRAFT, layers=4), 1), (0, 3))
    one = trainer(tmp_path / "run", corpus, SHORT, small)
    ran(one)
    vocab = write_gguf(tmp_path / "vocab.gguf", tiny_metadata(VOCAB))
    write_hugging_face(one.best_decoder(), vocab, tmp_path / "draft", "float32")
    assert_equal(weights(load_decoder(tmp_path / "draft")), weights(one.decoder))


def test_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        MissingExtra, match=r"low-rank training needs the package peft; .* pip install 'foredraft\[tune\]'"
    ):
        Draft(made(DRAFT), frozen(), replace(SHORT, rank=4), 64)
