"""From what a user asks for (``--controller``, ``--max-draft``, ``--tree``) to a controller for this engine and draft.

The fallback ladder starts here: trees only where the engine takes them, widths only where it offers them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from foredraft.control import Controller, CostAware, CostConfig, Fixed, Priors, Threshold, fixed
from foredraft.control.fixed import check_draft_size
from foredraft.engines.base import EngineInfo
from foredraft.errors import InvalidValue
from foredraft.types import Budget

ControllerName = Literal["cost", "threshold", "fixed"]
CONTROLLERS: tuple[ControllerName, ...] = get_args(ControllerName)
FIXED_DRAFT, COST_DRAFT, COST_TREE = 4, 15, 31
"""Defaults: tokens a round under ``fixed``; longest chain and largest tree under ``cost``."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``max_draft``: tokens a round, the longest chain under ``cost`` (None: the default); ``tree``: nodes of a tree, 0
    = chains only, None = as the controller likes."""

    controller: ControllerName = "cost"
    max_draft: int | None = None
    tree: int | None = None

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise InvalidValue("controller", self.controller, ", ".join(CONTROLLERS))
        check_draft_size(self.max_draft or 0, self.tree or 0)
        if self.controller == "threshold" and self.tree:
            raise InvalidValue("tree", self.tree, "0 with the threshold controller, which drafts chains only")

    def make(self, info: EngineInfo, priors: Priors) -> Controller:
        """A controller for an engine and what is known of its costs; where there is no draft, one that asks for it, so
        that the drafter can say why."""
        if self.controller == "threshold":
            return Threshold()
        if self.controller == "fixed" or not priors.sources:
            return self._fixed(tuple(priors.sources))
        return self._cost(info, priors)

    def _fixed(self, drafters: tuple[str, ...]) -> Fixed:
        """As asked for. A tree of two drafters holds both: a copy may take half of it, the model what is left."""
        simple = fixed(FIXED_DRAFT if self.max_draft is None else self.max_draft, self.tree or 0)
        what = simple.what
        if what.branches < 2 or what.nodes < 2 or len(drafters) < 2:
            return simple
        parts = dict.fromkeys(drafters, what) | {"ngram": Budget.chain(min(what.depth, what.nodes // 2))}
        return Fixed(replace(what, merge=True, sources=parts))

    def _cost(self, info: EngineInfo, priors: Priors) -> Controller:
        longest = COST_DRAFT if self.max_draft is None else self.max_draft
        largest = COST_TREE if self.tree is None else self.tree
        return CostAware(priors, CostConfig(longest, largest if info.tree else 0, widths=info.widths))
