"""Which real models fit each other, by library and by command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from foredraft.chat import encode_prompt
from foredraft.cli.pair_check import pair_check
from foredraft.engines.llama_vocab import LoadedVocab
from foredraft.pair import check_pair, real_size
from tests.support.models import ensure_model
from tests.support.vocabularies import SCRIPTS, assert_round_trips

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def test_a_model_fits_itself(smol: LoadedVocab, gemma: LoadedVocab) -> None:
    assert check_pair(smol, smol).ok
    assert check_pair(smol, smol).barred == frozenset()
    report = check_pair(gemma, gemma)
    assert report.ok
    assert min(report.barred) == real_size(gemma)


def test_strangers_are_refused_with_every_reason(smol: LoadedVocab, gemma: LoadedVocab) -> None:
    codes = [problem.code for problem in check_pair(gemma, smol).problems]
    assert codes == ["vocab_type_differs", "add_bos_differs", "vocab_size_differs", "token_text_differs"]


def test_pair_check_command_accepts() -> None:
    path = str(ensure_model("smollm2-135m"))
    result = CliRunner().invoke(pair_check, [path, path])
    assert result.exit_code == 0
    assert "compatible" in result.output
    assert "not compatible" not in result.output
    assert "shared tokens: 49152; barred from drafts: none" in result.output
    assert "same chat template: yes" in result.output


def test_pair_check_command_refuses_and_speaks_json() -> None:
    pair = [str(ensure_model("gemma3-270m")), str(ensure_model("smollm2-135m"))]
    result = CliRunner().invoke(pair_check, pair)
    assert result.exit_code == 1
    assert "barred from drafts: 0-1881, 1883-4760, 4762-262143\n" in result.output
    assert "not compatible" in result.output
    assert "vocab_type_differs target=spm draft=bpe" in result.output
    result = CliRunner().invoke(pair_check, [*pair, "--json"])
    assert result.exit_code == 1
    verdict = json.loads(result.output)
    assert (verdict["compatible"], verdict["target"]["vocab_size"], verdict["draft"]["type"]) == (
        False,
        262144,
        "bpe",
    )
    assert verdict["problems"][0] == {"code": "vocab_type_differs", "text": "target=spm draft=bpe"}


@pytest.mark.bench
def test_qwen_pair_fits(qwen_pair: tuple[LoadedVocab, LoadedVocab]) -> None:
    target, draft = qwen_pair
    report = check_pair(target, draft)
    assert report.ok
    assert report.shared_size == 151665
    assert report.barred == frozenset(range(151665, 151936))
    assert [warning.code for warning in report.warnings] == ["chat_template_differs"]
    assert target.eog_ids == draft.eog_ids == {128247, 151643, 151645, 151662, 151663, 151664}


@pytest.mark.bench
def test_qwen_and_smollm2_are_refused(qwen_pair: tuple[LoadedVocab, LoadedVocab], smol: LoadedVocab) -> None:
    problems = check_pair(qwen_pair[0], smol).problems
    assert [problem.code for problem in problems] == ["vocab_size_differs", "token_text_differs"]
    assert problems[0].text == "target=151936 draft=49152 difference=102784 allowed=128"


@pytest.mark.bench
def test_qwen_golden_ids_and_templates(qwen_pair: tuple[LoadedVocab, LoadedVocab]) -> None:
    for vocab in qwen_pair:
        assert vocab.encode("The capital of France is", add_special=True, parse_special=True) == [
            785, 6722, 315, 9625, 374,
        ]  # fmt: skip
        encoded = encode_prompt(vocab, "Hi")
        assert encoded.rendered == (
            f"<|im_start|>system\n{QWEN_SYSTEM}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        assert encoded.ids[:3] == (151644, 8948, 198)
        assert encoded.ids[-8:] == (872, 198, 13048, 151645, 198, 151644, 77091, 198)
        assert encode_prompt(vocab, "Hi", system="Be brief.").rendered.startswith(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
        )


@pytest.mark.bench
@pytest.mark.parametrize("text", SCRIPTS)
def test_text_in_many_scripts_comes_back_from_qwen(qwen_pair: tuple[LoadedVocab, LoadedVocab], text: str) -> None:
    assert_round_trips(qwen_pair[0], text)
