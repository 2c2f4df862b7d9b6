"""What a draft's confidence in a token is worth: learned while it drafts."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST, MOST = 0.002, 0.998
"""No acceptance is believed to be beyond these."""
_WANDER_A, _WANDER_B = 0.001, 0.0003
"""Variance that a and b gain with every trial: they may wander."""


@dataclass(slots=True)
class Calibration:
    """What a draft's confidence means: acceptance = σ(a + b · logit(confidence)) (Platt 1999), a and b learned trial by
    trial: a normal law over the two, updated as by one Newton step (the extended Kalman filter of a logistic
    regression), and widened a little every time, so that old trials count less. A draft's law at another temperature,
    or copies behind short matches, are thus understood after some ten trials."""

    a: float = 0.0
    b: float = 0.8
    var_a: float = 0.5
    var_b: float = 0.15
    cov: float = 0.0

    def __call__(self, confidence: float) -> float:
        """Acceptance to be expected."""
        return min(MOST, max(LEAST, _sigmoid(self.a + self.b * _logit(confidence))))

    def add(self, confidence: float, hit: bool) -> None:
        """One trial."""
        z = _logit(confidence)
        p = _sigmoid(self.a + self.b * z)
        var_a, var_b, cov = self.var_a + _WANDER_A, self.var_b + _WANDER_B, self.cov
        gain_a, gain_b = var_a + cov * z, cov + var_b * z
        weight = p * (1.0 - p)
        share = weight / (1.0 + weight * (gain_a + z * gain_b))
        self.var_a = var_a - share * gain_a * gain_a
        self.var_b = var_b - share * gain_b * gain_b
        self.cov = cov - share * gain_a * gain_b
        step = (hit - p) / (1.0 + weight * (gain_a + z * gain_b))
        self.a += gain_a * step
        self.b += gain_b * step


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, x))))


def _logit(confidence: float) -> float:
    """ln(c / (1 - c)), between -4.5 and 4.5."""
    inside = min(0.989, max(0.011, confidence))
    return math.log(inside / (1.0 - inside))
