"""The result of a run over a table of published steps: predictions, errors, refusals, and their JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sim.accuracy import ranking, score
from sim.accuracy.score import Outcome, Summary
from sim.result.uncertainty import Interval, Shares


class Refusal(msgspec.Struct, frozen=True):
    """A row that has no prediction, and why."""

    row_id: str
    reason: str


class Found(msgspec.Struct, frozen=True):
    """The prediction of one plan, as far as the scores need it."""

    seconds: float
    ideal_s: float
    """Model FLOPs over the peak of all GPUs at the plan's precision."""
    interval: Interval | None = None
    shares: Shares = {}
    """(kind of cost, source) -> share of the step (`sim.result.uncertainty`)."""
    beyond: bool = False
    """The plan lies outside the data that the costs were fitted on."""


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Errors are fractions (0.12 = 12 %). `to_dict()` is the JSON of `steptwin validate --json`."""

    rows: int
    """Rows in the table."""
    eligible: int
    """Rows of quality A or B with a step time."""
    outcomes: tuple[Outcome, ...]
    refused: tuple[Refusal, ...]
    found: dict[str, Found] = {}
    seconds: float = 0.0

    @property
    def scored(self) -> int:
        return len(self.outcomes)

    @property
    def coverage(self) -> float:
        return self.scored / self.eligible if self.eligible else 0.0

    @property
    def all(self) -> Summary:
        return score.summarise([outcome.error for outcome in self.outcomes])

    @property
    def mape(self) -> float:
        return self.all.mape

    @property
    def by_source(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.source_id)

    @property
    def by_gpu(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.gpu)

    @property
    def by_family(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.family)

    @property
    def by_framework(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.framework)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; the worst rows with what was assumed for them come last."""
        total = self.all
        worst = sorted(self.outcomes, key=lambda o: -abs(o.error))[:20]
        spread = ranking.spread(self.outcomes)
        return {
            "rows": self.rows,
            "eligible": self.eligible,
            "scored": self.scored,
            "coverage": self.coverage,
            "refused": [msgspec.structs.asdict(one) for one in self.refused],
            "mape": total.mape,
            "median_ape": total.median_ape,
            "bias": total.bias,
            "by_source": _plain(self.by_source),
            "by_gpu": _plain(self.by_gpu),
            "by_family": _plain(self.by_family),
            "by_framework": _plain(self.by_framework),
            "interval": score.coverage_table(self.outcomes),
            "baseline_constant_mfu": score.baseline_table(self.outcomes),
            "rank_correlation": ranking.rank_correlations(self.outcomes),
            "rank_correlation_throughput": ranking.rank_correlations(self.outcomes, ranking.throughput),
            "rank_correlation_measured_again": ranking.measured_again(self.outcomes),
            "assumed": _counts(assumption for outcome in self.outcomes for assumption in outcome.assumed),
            "worst": [self._worst(outcome, spread) for outcome in worst],
            "predictions": {o.row_id: _one(o) for o in self.outcomes},
            "seconds": self.seconds,
        }

    def _worst(self, outcome: Outcome, spread: dict[str, float]) -> dict[str, Any]:
        """A row with a large error, and what its prediction rests on: what was assumed, and the three largest shares of its time. `spread`:
        as of `ranking.spread`."""
        found = self.found.get(outcome.row_id)
        spent = sorted(found.shares.items(), key=lambda item: -item[1])[:3] if found else []
        return {
            "row_id": outcome.row_id,
            "model": outcome.model,
            "gpu": outcome.gpu,
            "measured_s": outcome.measured_s,
            "predicted_s": outcome.predicted_s,
            "error": outcome.error,
            "assumed": list(outcome.assumed),
            "spent_on": [f"{kind} {share:.0%} ({source})" for (kind, source), share in spent],
            "measured_again": spread.get(outcome.row_id),
        }


def _one(outcome: Outcome) -> dict[str, Any]:
    """A row as the report draws it."""
    low, high = outcome.interval_s or (outcome.predicted_s, outcome.predicted_s)
    return {
        "measured_s": outcome.measured_s,
        "predicted_s": outcome.predicted_s,
        "low_s": low,
        "high_s": high,
        "mark": outcome.mark,
        "ideal_s": outcome.ideal_s,
        "source": outcome.source_id,
        "family": outcome.family,
        "gpu": outcome.gpu,
        "model": outcome.model,
        "what": outcome.what,
    }


def _plain(groups: dict[str, Summary]) -> dict[str, dict[str, float]]:
    return {name: msgspec.structs.asdict(summary) for name, summary in groups.items()}


def _counts(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
