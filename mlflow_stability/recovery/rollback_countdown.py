"""Announces a rollback at the first loss above `divergence_threshold`, before the last one triggers it.

In: the losses of a training, step by step. Out: a line for its terminal, or none. Pure. Guarantees: the losses that
count are those of `DivergenceClassic`, whose finding is the rollback; one line for a row of high losses, and one where
the row ends without a rollback. After `ALWAYS` rows a row is announced only each time that their number has doubled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.baseline import ClassicWindow
from mlflow_stability.detectors.detector import Point
from mlflow_stability.kinds.loss.divergence_classic import DivergenceClassic
from mlflow_stability.recovery.rollback_policy import RollbackPolicy

ALWAYS = 4
"""Number of rows that are all announced: a noisy loss may cross a low threshold at every tenth step."""


@dataclass(slots=True)
class _Losses:
    """The losses of one part of a training, such as a half of a GAN."""

    window: ClassicWindow = field(default_factory=ClassicWindow)
    is_announced: bool = False
    """Whether the present row of high losses was announced."""


class RollbackCountdown:
    """The high losses in a row of one training."""

    def __init__(self, rule: DivergenceClassic) -> None:
        self._rule = rule
        self._losses: dict[str, _Losses] = {}
        self._rows = 0

    def line(self, step: int, loss: float, place: str = "") -> str:
        """What to write after this step; mostly nothing."""
        losses, rule = self._losses.setdefault(place, _Losses()), self._rule
        window, before = losses.window, losses.window.run
        mean = window.mean() if window.values else 0.0
        losses.window, _ = rule.step(window, Point("loss", place, step, loss))
        run = losses.window.run
        if run == 1 and before == 0:
            self._rows += 1
            losses.is_announced = self._rows <= ALWAYS or self._rows & (self._rows - 1) == 0
            if losses.is_announced:
                return (
                    f"loss {loss:.4g} at step {step}, {loss / mean:.2g} times its mean of {mean:.4g}: 1 of "
                    f"{rule.consecutive_steps} consecutive steps; rollback at {rule.consecutive_steps} "
                    f"(divergence_threshold={rule.divergence_threshold:g})."
                )
        if run == 0 and losses.is_announced:
            losses.is_announced = False
            if before < rule.consecutive_steps:
                return f"loss {loss:.4g} at step {step}, below the threshold again: no rollback."
        return ""

    def restart(self) -> None:
        """Forget the losses, as the detectors do after a rollback."""
        self._losses.clear()


def countdown_of(policy: RollbackPolicy) -> RollbackCountdown | None:
    """The countdown of a policy; None where no row of high losses leads to a rollback."""
    threshold, steps = policy.divergence_threshold, policy.consecutive_divergence_steps
    if threshold is None or steps < 2 or not policy.rollback or DivergenceClassic.kind not in policy.rollback_on:
        return None
    return RollbackCountdown(DivergenceClassic(threshold, steps))
