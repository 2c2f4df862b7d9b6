"""What is set against plain decoding: who drafts and how much, written as one short word.

``DRAFTS[:CONTROLLER[:K][:tree=N]]``, e.g. ``ngram:fixed:4``, ``model:fixed:7:tree=16`` or ``ngram+model:cost``. A comma
in any part gives several arms: ``ngram,model:fixed:2,4,7`` are six.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from foredraft.errors import InvalidValue
from foredraft.policy import CONTROLLERS, ControllerName, Policy

HEAD = "head"
PLAIN = "plain"
"""The name of plain decoding, which always runs."""
_MODEL = re.compile(r"model(?:[2-9]|[1-9][0-9])?")
_NUMBER = re.compile(r"[0-9]{1,4}")
_FORM = "DRAFTS:CONTROLLER[:K][:tree=N], e.g. ngram:fixed:4, model:fixed:4,7:tree=0,16 or ngram+model:cost"


@dataclass(frozen=True, slots=True)
class Arm:
    """``drafts``: "ngram", "head", "model", "model2", … (the first, second, … draft model), asked in this order.
    ``max_draft``: tokens a round under ``fixed``, the longest chain under ``cost`` (None: its default). ``tree``: nodes
    of a tree, 0 = chains only, None = as the controller likes."""

    drafts: tuple[str, ...]
    controller: ControllerName = "cost"
    max_draft: int | None = None
    tree: int | None = None

    def __str__(self) -> str:
        size = f":{self.max_draft}" if self.max_draft is not None else ""
        shape = f":tree={self.tree}" if self.tree is not None else ""
        return f"{'+'.join(self.drafts)}:{self.controller}{size}{shape}"

    @property
    def policy(self) -> Policy:
        """How much it drafts, as ``generate`` would take it."""
        return Policy(self.controller, self.max_draft, self.tree)

    @property
    def model(self) -> int | None:
        """Index of its draft model among those of the target; None if it has none."""
        names = [draft for draft in self.drafts if draft not in ("ngram", HEAD)]
        return int(names[0].removeprefix("model") or "1") - 1 if names else None

    @property
    def head(self) -> bool:
        """Whether the target's draft head is asked."""
        return HEAD in self.drafts


def parse_arms(texts: Iterable[str]) -> list[Arm]:
    """All arms of all texts, each once, in order. InvalidValue says what is wrong with a text."""
    return list(dict.fromkeys(arm for text in texts for arm in _parse(text)))


def default_arms(models: int, *, head: bool = False) -> list[Arm]:
    """A sweep of fixed lengths for every draft, and the cost-aware controller with all that one draft model gives."""
    names = ["model", *(f"model{number}" for number in range(2, models + 1))][:models]
    names += [HEAD] if head else []
    texts = [f"{','.join(['ngram', *names])}:fixed:2,4,7"]
    texts += [f"ngram+{name}:cost" for name in names] or ["ngram:cost"]
    return parse_arms(texts)


def check_models(arms: Sequence[Arm], count: int, target: str, *, head: bool = False) -> None:
    """Raise InvalidValue for an arm whose draft model ``target`` does not have (it has ``count``), or whose head."""
    for arm in arms:
        if arm.head and not head:
            raise InvalidValue("--arm", str(arm), "arms whose head is there: give one with --draft head or --draft DIR")
        if arm.model is not None and arm.model >= count:
            fix = "give one with --draft" if not count else f"{target} has {count}"
            raise InvalidValue("--arm", str(arm), f"arms whose draft models are there: {fix}")


def _parse(text: str) -> list[Arm]:
    drafts, *rest = text.replace(" ", "").split(":")
    trees: list[int | None] = [None]
    if rest and rest[-1].startswith("tree="):
        trees = [_tree(text, part) for part in rest.pop().removeprefix("tree=").split(",")]
    controllers = rest.pop(0).split(",") if rest else ["cost"]
    lengths: list[int | None] = [_length(text, part) for part in rest.pop(0).split(",")] if rest else [None]
    if rest:
        raise InvalidValue("--arm", text, _FORM)
    return [
        _arm(text, names, controller, length, tree)
        for names, controller, length, tree in product(drafts.split(","), controllers, lengths, trees)
    ]


def _arm(text: str, names: str, controller: str, length: int | None, tree: int | None) -> Arm:
    if controller not in CONTROLLERS:
        raise InvalidValue("--arm", text, f"one of the controllers {', '.join(CONTROLLERS)}: {_FORM}")
    if controller == "fixed" and not length:
        raise InvalidValue("--arm", text, "a length of at least 1 for fixed, e.g. ngram:fixed:4")
    if controller == "threshold" and (length is not None or tree):
        raise InvalidValue("--arm", text, "threshold without a length or a tree: it has its own")
    if controller != "cost" and not tree:
        tree = None  # the same as chains only
    arm = Arm(_drafts(text, names), controller, length, tree)
    arm.policy  # noqa: B018  checks the numbers
    return arm


def _drafts(text: str, names: str) -> tuple[str, ...]:
    drafts = tuple(names.split("+"))
    if "none" in drafts or PLAIN in drafts:
        raise InvalidValue("--arm", text, "arms that draft; plain decoding always runs")
    for draft in drafts:
        if draft not in ("ngram", HEAD) and not _MODEL.fullmatch(draft):
            raise InvalidValue("--arm", text, f"the drafts ngram, head, model, model2, … joined by +: {_FORM}")
    if len(set(drafts)) < len(drafts) or len([draft for draft in drafts if draft != "ngram"]) > 1:
        raise InvalidValue("--arm", text, "each draft once, and one draft model or head at most")
    return drafts


def _length(text: str, part: str) -> int:
    if not _NUMBER.fullmatch(part):
        raise InvalidValue("--arm", text, _FORM)
    return int(part)


def _tree(text: str, part: str) -> int | None:
    if part == "auto":
        return None
    if part != "off" and not _NUMBER.fullmatch(part):
        raise InvalidValue("--arm", text, f"tree=auto, tree=off or a number of nodes: {_FORM}")
    return 0 if part == "off" else int(part)
