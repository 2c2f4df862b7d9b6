"""The target's law from its definition: plain Python loops over a whole history, nothing kept, nothing shared with
``foredraft.sampling``. Also the joint law of several tokens, as the product of the conditional ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from foredraft.types import Logits, SamplingParams

Table = Callable[[tuple[int, ...]], Logits]
Tokens = tuple[int, ...]


def edited_row(
    row: Sequence[float], prompt: Tokens, output: Tokens, params: SamplingParams, eog: Tokens = ()
) -> list[float]:
    """Logit bias, then repetition, presence and frequency penalties within the window, then ``min_tokens``."""
    values = [float(value) + params.logit_bias.get(token, 0.0) for token, value in enumerate(row)]
    text = [*prompt, *output]
    start = max(0, len(text) - params.penalty_window) if params.penalty_window else 0
    seen = set(text[start:])
    written = text[max(start, len(prompt)) :]
    for token in range(len(values)):
        if token in seen and params.repetition_penalty != 1.0:
            factor = params.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        count = written.count(token)
        if count:
            values[token] -= params.presence_penalty + params.frequency_penalty * count
        if token in eog and len(output) < params.min_tokens:
            values[token] = -math.inf
    return values


def truncated(values: Sequence[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p: the law as a dense list of probabilities; ties go to the lower id."""
    order = sorted((t for t, v in enumerate(values) if v > -math.inf), key=lambda t: (-values[t], t))
    if params.greedy:
        return [float(token == order[0]) for token in range(len(values))]
    if params.top_k:
        order = order[: params.top_k]
    peak = values[order[0]]
    weight = {token: math.exp((values[token] - peak) / params.temperature) for token in order}
    if params.top_p < 1.0:
        need, mass, kept = params.top_p * math.fsum(weight.values()), 0.0, 0
        while mass < need and kept < len(order):
            mass += weight[order[kept]]
            kept += 1
        order = order[:kept]
    order = [token for token in order if weight[token] >= params.min_p]
    total = math.fsum(weight[token] for token in order)
    return [weight[token] / total if token in order else 0.0 for token in range(len(values))]


def next_law(table: Table, prompt: Tokens, output: Tokens, params: SamplingParams, eog: Tokens = ()) -> list[float]:
    """The law of the token after ``prompt + output``."""
    return truncated(edited_row(table((*prompt, *output)).tolist(), prompt, output, params, eog), params)


def joint_law(
    table: Table, prompt: Tokens, params: SamplingParams, length: int, eog: Tokens = ()
) -> dict[Tokens, float]:
    """The law of the next ``length`` tokens, shorter where one of ``eog`` ends the text."""
    open_texts: dict[Tokens, float] = {(): 1.0}
    ended: dict[Tokens, float] = {}
    for _ in range(length):
        grown: dict[Tokens, float] = {}
        for output, probability in open_texts.items():
            for token, share in enumerate(next_law(table, prompt, output, params, eog)):
                if share > 0.0:
                    (ended if token in eog else grown)[(*output, token)] = probability * share
        open_texts = grown
    return {**open_texts, **ended}
