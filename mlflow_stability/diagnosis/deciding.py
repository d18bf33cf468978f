"""Names the finding that decides a run's outcome, whose cause and remedies are those of the verdict.

In: the outcome and the episodes. Out: the episode the verdict is about; None where there is nothing above INFO. Of
several that are equally bad and that passed, the first whose cause is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity

NON_FINITE = ("nan_detected", "inf_detected")
KINDS_THAT_DECIDE: dict[str, tuple[str, ...]] = {
    "broken": NON_FINITE,
    "diverged": ("divergence", "loss_spike"),
    "stuck": ("plateau",),
    "overfitted": ("overfitting",),
    "out_of_memory": ("out_of_memory",),
    "killed": ("killed",),
    "crashed": ("crashed",),
}
"""For each outcome what it is concluded from; any other outcome is that of the worst findings."""


def deciding_of(outcome: str, episodes: Sequence[Episode]) -> Episode | None:
    """The episode that the outcome is concluded from."""
    bad = [each for each in episodes if each.severity >= Severity.WARNING]
    lost = [each for each in bad if each.kind in KINDS_THAT_DECIDE.get(outcome, ())]
    if lost:
        return min(lost, key=_order_of_loss)
    return min(bad, key=lambda each: (-each.severity, each.cause is None, each.attempt, each.start), default=None)


def _order_of_loss(episode: Episode) -> tuple[bool, int, bool, int, int]:
    """What lasted comes first, of the last start of the training; then a divergence, the worst, the earliest."""
    recovered = bool(episode.recovered)
    return recovered, -episode.attempt, episode.kind == "loss_spike", -episode.severity, episode.start
