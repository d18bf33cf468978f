"""Decide which findings are reported while a training runs: each trouble once.

A trouble is a series of findings less than `GAP_STEPS` apart: the learning rate jumps, the gradient
explodes, the loss spikes, the training diverges. Its first finding is reported, and later ones that are worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.kinds.catalog import of_instability
from mlflow_stability.vocabulary.result import Finding, Severity

GAP_STEPS = 100
"""Steps between two measurements by layer, which see the same trouble later."""
ALWAYS_REPORTED = 4
"""Times a kind of finding is reported when it starts again; later each time that its number has doubled."""
ACTIONS = frozenset({"rollback", "data_changed", "give_up", "checkpoint_failed", "checkpoint_not_finite"})
"""Findings that say what was done."""
_SAME_TROUBLE = of_instability(Instability.SIGN, Instability.HARMFUL)
"""Kinds of findings that come together: one leads to the others."""
_NON_FINITE = frozenset({"activation_nonfinite", "inf_detected", "nan_detected"})
_JUMPS = frozenset({"gradient_explosion", "layer_explosion", "loss_spike", "update_ratio_high", "weight_spike"})
"""One jump is seen in several signals."""


@dataclass(slots=True)
class _Trouble:
    """A trouble in progress."""

    last: int
    """Step of its last finding."""
    rank: int
    """Severity of the worst one reported."""
    types: set[str]
    """Kinds that were reported."""
    reported: Finding | None = None
    """The last finding reported; None after a rollback."""


class Troubles:
    def __init__(self) -> None:
        self._open: dict[str, _Trouble] = {}
        self._begun: dict[str, int] = {}

    def is_news(self, event: Finding) -> bool:
        if event.severity < Severity.WARNING:
            return False
        if event.kind in ACTIONS:
            return True
        family = "" if event.kind in _SAME_TROUBLE else f"{event.kind}@{event.place}"
        rank = _rank(event)
        trouble = self._open.get(family)
        if trouble is None or abs(event.step - trouble.last) > GAP_STEPS:
            times = self._begun[event.kind] = self._begun.get(event.kind, 0) + 1
            is_said = times <= ALWAYS_REPORTED or times & (times - 1) == 0
            self._open[family] = _Trouble(event.step, rank, {event.kind}, event if is_said else None)
            return is_said
        trouble.last = max(trouble.last, event.step)
        if rank <= trouble.rank or event.kind in trouble.types:
            return False
        trouble.rank = rank
        trouble.types.add(event.kind)
        trouble.reported = event
        return True

    def said_before(self, step: int) -> Finding | None:
        """Return what was reported of the instability at this step, if anything."""
        trouble = self._open.get("")
        return trouble.reported if trouble is not None and abs(step - trouble.last) <= GAP_STEPS else None

    def answered(self, step: int) -> None:
        """Note a rollback: findings in the next steps belong to the same trouble."""
        self._open[""] = _Trouble(step, 2, {"divergence"})

    @staticmethod
    def is_instability(event: Finding) -> bool:
        """Whether skipping a step or a rollback may answer it."""
        return event.kind in _SAME_TROUBLE

    @staticmethod
    def is_traced(event: Finding, origin: Finding) -> bool:
        """Whether a finding is the NaN whose origin was found, or its consequence."""
        late = event.step - origin.step
        return late == 0 if event.kind == "step_skipped" else event.kind in _NON_FINITE and 0 <= late <= GAP_STEPS


def _rank(event: Finding) -> int:
    if event.kind in _NON_FINITE:
        return 3
    return 2 if event.severity >= Severity.CRITICAL and event.kind not in _JUMPS else 1
