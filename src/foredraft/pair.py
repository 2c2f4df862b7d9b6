"""Whether a draft's vocabulary fits a target's: one code per broken rule, with the values.

The rules are llama.cpp's for draft models: same vocabulary type, same BOS/EOS handling, sizes at most 128
apart, same text for every id from 5 up. Padding rows are no tokens. Knows vocabularies only, no weights and
no files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.errors import PairMismatch
from foredraft.tokens import Tokenizer

ALLOWED_SIZE_DIFFERENCE = 128
FIRST_COMPARED_ID = 5  # ids below are special tokens that families of models rename freely
_PADDING = re.compile(rb"\[PAD\d*\]|<\|?(?:dummy|unused)[^>]*>", re.IGNORECASE)
_WORDLESS = ("unused", "control", "unknown")


@dataclass(frozen=True, slots=True)
class Problem:
    """One rule that does not hold: its ``code``, and ``text`` with the values; ``str`` joins them."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


@dataclass(frozen=True, slots=True)
class PairReport:
    """Verdict on a pair.

    ``problems`` make the pair unusable; ``warnings`` do not. ``barred``: ids the draft may never propose,
    namely all that are no token in both vocabularies and all whose texts differ. ``shared_size``: real tokens
    of the smaller vocabulary.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    barred: frozenset[int]
    shared_size: int

    @property
    def ok(self) -> bool:
        """True if the pair may be used."""
        return not self.problems

    def raise_if_bad(self, target_name: str, draft_name: str) -> None:
        """PairMismatch with the first problem and the number of the others, if there is one."""
        if self.ok:
            return
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        raise PairMismatch(
            f"draft {draft_name} does not fit target {target_name}: {self.problems[0]}{more}; "
            "use a draft of the target's own model family, or draft without a model"
        )


def check_pair(target: Tokenizer, draft: Tokenizer, *, allow_differing: bool = False) -> PairReport:
    """Compare two vocabularies. ``allow_differing`` accepts ids with differing texts if they are unused,
    control or unknown tokens in both, and bars them from drafts; differing words remain a problem."""
    sizes = real_size(target), real_size(draft)
    shared = min(sizes)
    differing = _differing_ids(target, draft, shared)
    low = [id for id in differing if id < FIRST_COMPARED_ID]
    high = differing[len(low) :]
    forgiven = [id for id in high if _wordless(target, draft, id)] if allow_differing else []
    offending = sorted(set(high) - set(forgiven))
    problems = [*_header_problems(target, draft), *_text_problems(target, draft, offending, shared)]
    warnings = [*_size_warnings(*sizes), *_text_problems(target, draft, [*low, *forgiven], shared)]
    warnings += _other_warnings(target, draft)
    barred = frozenset(range(shared, max(target.vocab_size, draft.vocab_size))) | frozenset(differing)
    return PairReport(tuple(problems), tuple(warnings), barred, shared)


def real_size(tokenizer: Tokenizer) -> int:
    """Number of ids without the padding at the end: unused entries and such as ``[PAD12]``,
    ``<|dummy_3|>``."""
    size = tokenizer.vocab_size
    while size and _is_padding(tokenizer, size - 1):
        size -= 1
    return size


def _is_padding(tokenizer: Tokenizer, id: int) -> bool:
    return tokenizer.attribute(id) == "unused" or _PADDING.fullmatch(tokenizer.text_of(id)) is not None


def _differing_ids(target: Tokenizer, draft: Tokenizer, size: int) -> list[int]:
    """Ids below ``size`` whose texts differ, ascending."""
    ours, theirs = target.text_of, draft.text_of
    return [id for id in range(size) if ours(id) != theirs(id)]


def _wordless(target: Tokenizer, draft: Tokenizer, id: int) -> bool:
    """True if neither vocabulary uses the id for text."""
    return target.attribute(id) in _WORDLESS and draft.attribute(id) in _WORDLESS


def _header_problems(target: Tokenizer, draft: Tokenizer) -> list[Problem]:
    """Everything that is compared without looking at the entries."""
    problems = []
    if target.kind != draft.kind:
        problems.append(Problem("vocab_type_differs", f"target={target.kind} draft={draft.kind}"))
    problems += _end_problems("bos", (target.add_bos, draft.add_bos), (target.bos_id, draft.bos_id))
    problems += _end_problems("eos", (target.add_eos, draft.add_eos), (target.eos_id, draft.eos_id))
    difference = abs(target.vocab_size - draft.vocab_size)
    if difference > ALLOWED_SIZE_DIFFERENCE:
        sizes = f"target={target.vocab_size} draft={draft.vocab_size}"
        text = f"{sizes} difference={difference} allowed={ALLOWED_SIZE_DIFFERENCE}"
        problems.append(Problem("vocab_size_differs", text))
    return problems


def _end_problems(name: str, added: tuple[bool, bool], ids: tuple[int | None, int | None]) -> list[Problem]:
    """BOS or EOS: added by both or by none, and the same id where it is added."""
    if added[0] != added[1]:
        return [Problem(f"add_{name}_differs", f"target={str(added[0]).lower()} draft={str(added[1]).lower()}")]
    if added[0] and ids[0] != ids[1]:
        return [Problem(f"{name}_differs", f"target={ids[0]} draft={ids[1]}")]
    return []


def _text_problems(target: Tokenizer, draft: Tokenizer, ids: Sequence[int], size: int) -> list[Problem]:
    """One entry for all differing ids, with the first of them in full."""
    if not ids:
        return []
    first, verb = ids[0], "differs" if len(ids) == 1 else "differ"
    return [
        Problem(
            "token_text_differs",
            f"id={first} target={_quoted(target, first)} draft={_quoted(draft, first)} ({len(ids)} of {size} {verb})",
        )
    ]


def _size_warnings(target: int, draft: int) -> list[Problem]:
    if target == draft:
        return []
    text = f"target={target} draft={draft}: the draft never proposes ids from {min(target, draft)} up"
    return [Problem("real_size_differs", text)]


def _other_warnings(target: Tokenizer, draft: Tokenizer) -> list[Problem]:
    """Differences that cost nothing: the target's end tokens and template are the ones that count."""
    warnings = []
    if target.eog_ids != draft.eog_ids:
        ids = f"target={sorted(target.eog_ids)} draft={sorted(draft.eog_ids)}"
        warnings.append(Problem("end_tokens_differ", f"{ids}: the target's count"))
    if target.chat_template != draft.chat_template:
        warnings.append(Problem("chat_template_differs", "the target's is used for both"))
    return warnings


def _quoted(tokenizer: Tokenizer, id: int) -> str:
    return repr(tokenizer.text_of(id).decode("utf-8", "backslashreplace"))
