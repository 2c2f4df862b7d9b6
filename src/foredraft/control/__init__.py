"""How much to draft next. Knows nothing about engines, tokens or text; sees only finished steps."""

from foredraft.control.base import OFF, Controller
from foredraft.control.cost import CostAware, CostConfig
from foredraft.control.fixed import Fixed, fixed
from foredraft.control.priors import NGRAM, Priors, SourcePriors
from foredraft.control.threshold import Threshold, ThresholdConfig

__all__ = [
    "NGRAM",
    "OFF",
    "Controller",
    "CostAware",
    "CostConfig",
    "Fixed",
    "Priors",
    "SourcePriors",
    "Threshold",
    "ThresholdConfig",
    "fixed",
]
