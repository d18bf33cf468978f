"""Counts how often something happens per 10,000 steps, with what chance leaves open.

In: counts and steps. Out: a rate with its exact interval, and whether one rate is higher than another beyond chance.
"""

from __future__ import annotations

from scipy import stats

from mlflow_stability.vocabulary.result import Rate, RunCard

PER = 10_000
"""Spikes are counted in so many steps."""
CONFIDENCE = 0.95
"""Of the interval of the rate."""


def spike_rate_of(card: RunCard) -> Rate | None:
    """Loss spikes per 10,000 steps with a finite loss; None where there is nothing that could have spiked."""
    steps = round(card.steps * card.finite_share)
    return rate_of(len(card.spike_steps), steps) if card.loss and steps > 1 else None


def rate_of(count: int, steps: int) -> Rate:
    """The rate with the interval of Garwood (1936), which is exact for a Poisson count."""
    tail = (1 - CONFIDENCE) / 2
    low = float(stats.chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    high = float(stats.chi2.ppf(1 - tail, 2 * count + 2)) / 2
    return Rate(count, steps, count / steps * PER, low / steps * PER, high / steps * PER)


def chance_of_more(rate: Rate, baseline: Rate) -> float:
    """How likely chance alone makes the first so much higher, were both rates the same: a p-value."""
    both = rate.count + baseline.count
    if not both:
        return 1.0
    share = rate.steps / (rate.steps + baseline.steps)
    return float(stats.binomtest(rate.count, both, share, alternative="greater").pvalue)
