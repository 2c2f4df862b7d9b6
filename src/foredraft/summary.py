"""What a finished request did, in numbers: one definition for the command line, the server and the profiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from foredraft.types import Emitted, FinishReason, Rung, Seconds, Step


@dataclass
class Summary:
    """Sums of steps. ``alpha`` = accepted ÷ evaluated drafted tokens (counting stops at the first rejection), never
    accepted ÷ drafted, which depends on the draft length. ``prefill`` is the time before the first round. ``rungs``:
    rounds by what they drafted; ``why``: the controller's reason for the last one."""

    tokens: list[Emitted] = field(default_factory=list)
    generated: int = 0
    rounds: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0
    prefill: Seconds = Seconds()  # noqa: RUF009  frozen
    seconds: Seconds = Seconds()  # noqa: RUF009  frozen
    bias: float = 0.0
    hidden_bytes: int = 0
    dropped: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    sources: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    rungs: dict[Rung, int] = field(default_factory=dict)
    why: str | None = None
    depths: list[list[int]] = field(default_factory=list)

    @staticmethod
    def of(steps: Iterable[Step]) -> Summary:
        """The sum of ``steps``."""
        summary = Summary()
        for step in steps:
            summary.add(step)
        return summary

    def add(self, step: Step) -> None:
        """Take one more step in."""
        if step.generated == 0 and step.finish_reason is None:
            self.prefill += step.seconds
            return
        self.tokens += step.emitted
        self.rounds += step.generated > 0
        self.generated += step.generated
        self.drafted += step.drafted
        self.evaluated += step.evaluated
        self.accepted += step.accepted
        self.seconds += step.seconds
        self.bias += step.bias
        self.hidden_bytes, self.dropped = step.hidden_bytes, step.dropped
        self.finish_reason = step.finish_reason
        if step.generated:
            self.rungs[step.rung] = self.rungs.get(step.rung, 0) + 1
            self.why = step.why
        if step.drafted:
            self.sources[step.drafter] = self.sources.get(step.drafter, 0) + 1
        if step.reason:
            self.reasons[step.reason] = self.reasons.get(step.reason, 0) + 1
        for depth in range(step.evaluated):
            if depth == len(self.depths):
                self.depths.append([0, 0])
            self.depths[depth][0] += depth < step.accepted
            self.depths[depth][1] += 1

    @property
    def ids(self) -> list[int]:
        """Ids of the released tokens."""
        return [token.id for token in self.tokens]

    @property
    def written(self) -> list[int]:
        """All ids of the text, those behind the start of a stop string included."""
        return [*self.ids, *self.dropped]

    @property
    def alpha(self) -> float | None:
        """Accepted ÷ evaluated drafted tokens; None if nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def alpha_by_depth(self) -> list[float]:
        """Acceptance at depth 1, 2, …, each given that the depth was reached."""
        return [accepted / evaluated for accepted, evaluated in self.depths]

    @property
    def mean_accepted_length(self) -> float | None:
        """Emitted tokens per round, bonus included (vLLM's definition)."""
        return self.generated / self.rounds if self.rounds else None

    @property
    def accepted_per_round(self) -> float | None:
        """Accepted drafted tokens per round, without the bonus token (the definition of many papers)."""
        return self.accepted / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens ÷ seconds of all rounds; reading the prompt is not counted."""
        return self.generated / self.seconds.total if self.seconds.total > 0 else None

    def as_json(self) -> dict[str, object]:
        """The numbers of ``generate --json``."""
        parts = self.seconds
        return {
            "tokens_per_second": self.tokens_per_second,
            "alpha": self.alpha,
            "alpha_by_depth": self.alpha_by_depth,
            "mean_accepted_length": self.mean_accepted_length,
            "accepted_per_round": self.accepted_per_round,
            "rounds": self.rounds,
            "generated": self.generated,
            "drafted": self.drafted,
            "evaluated": self.evaluated,
            "accepted": self.accepted,
            "finish_reason": self.finish_reason,
            "seconds": {"draft": parts.draft, "verify": parts.verify, "keep": parts.keep, "other": parts.other},
            "prefill_seconds": self.prefill.total,
            "drafters": self.sources,
            "rungs": self.rungs,
            "not_drafted": self.reasons,
            "last_decision": self.why,
        }
