"""What a vocabulary's entries are for: llama.cpp's rules for finding special tokens by their text.

Source of the texts: ``llama_vocab::impl::load`` in ``llama-vocab.cpp``. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping

from foredraft.hf_tokenizer import CONTROL, NORMAL, RESERVED, SPECIAL, UNUSED, USER_DEFINED

_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *(
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<eos>",
        "<turn|>",
    ),
    *("<end_of_utterance>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
"""Texts that end a generation wherever they are in a vocabulary."""
_ROLES: Mapping[str, tuple[str, ...]] = {
    "eot": (
        *(
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
        ),
        *("[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
        "<|prefix|>",
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
        "<|suffix|>",
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Texts by which a token of this role is found if no key names it: a control token, whatever its type says."""
_ENDING_ROLES = ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")


class Entries:
    """A vocabulary while llama.cpp's rules are applied to it: ``types`` by id, ``special``: role to id."""

    def __init__(self, ids: Mapping[str, int], types: list[str], special: dict[str, int | None]) -> None:
        self.ids, self.types, self.special = ids, types, special

    def apply_rules(self) -> frozenset[int]:
        """Correct ``types`` by well-known texts, and return the ids that end a generation.

        Of several texts for one role llama.cpp takes one at random (the order of a hash table), this the lowest id.
        """
        for role, texts in _ROLES.items():
            if self.special.get(role) is None:
                self.special[role] = min((self.ids[text] for text in texts if text in self.ids), default=None)
                self._make_control(self.special[role])
        for text, id in self.ids.items():
            if self.types[id] == CONTROL and "unused" in text:
                self.types[id] = RESERVED
        found = [self.ids[text] for text in _ENDS if text in self.ids]
        for id in found:
            self._make_control(id)
        for text in ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"):
            if text in self.ids:
                self.types[self.ids[text]] = USER_DEFINED
        named = (self.special.get(role) for role in _ENDING_ROLES)
        return self._without_exceptions({*found, *(id for id in named if id is not None)})

    def _make_control(self, id: int | None) -> None:
        if id is not None and self.types[id] not in SPECIAL:
            self.types[id] = RESERVED if self.types[id] == UNUSED else CONTROL

    def _without_exceptions(self, ends: set[int]) -> frozenset[int]:
        """In the formats of gpt-oss and Solar Open ``<|end|>`` does not end a generation, and in some ``</s>`` is a
        plain token."""
        found = {text for text in (*_ENDS, "<|plamo:eos|>") if self.ids.get(text) in ends}
        called = bool(found & {"<|call|>", "<|calls|>"})
        if "<|end|>" in found and called and found & {"<|return|>", "<|flush|>"}:
            ends.discard(self.ids["<|end|>"])
            self.types[self.ids["<|end|>"]] = USER_DEFINED
        if "</s>" in found and found & {"<|tool_response>", "<|plamo:eos|>"}:
            ends.discard(self.ids["</s>"])
            self.types[self.ids["</s>"]] = NORMAL
        return frozenset(ends)
