"""Decides which findings are said while a training runs: each trouble once.

A trouble is a series of findings with less than `GAP` steps between two of them: the learning rate jumps, the gradient
explodes, the loss spikes, the training diverges. Said are its first finding, and later ones that are worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.kinds.catalog import of_instability
from mlflow_stability.vocabulary.result import Finding, Severity

GAP = 100
"""Steps: as many as between two measurements by layer, which see the same trouble later."""
AS_BEFORE = 4
"""So often a finding of one type is said each time it begins anew; later each time that its number has doubled."""
ACTIONS = frozenset({"rollback", "data_changed", "give_up", "checkpoint_failed", "checkpoint_not_finite"})
"""Findings that say what was done; nothing else says it."""
_SAME_TROUBLE = of_instability(Instability.SIGN, Instability.HARMFUL)
"""Types of findings that come together: one of them leads to the others."""
_NON_FINITE = frozenset({"activation_nonfinite", "inf_detected", "nan_detected"})
_JUMPS = frozenset({"gradient_explosion", "layer_explosion", "loss_spike", "update_ratio_high", "weight_spike"})
"""One jump is seen in several numbers; how far each of them jumps makes no other trouble of it."""


@dataclass(slots=True)
class _Trouble:
    """One that goes on."""

    last: int
    """The step of its last finding."""
    rank: int
    """How bad the worst is that was said of it."""
    types: set[str]
    """What was said of it."""
    said: Finding | None = None
    """The last finding that was said of it; None after a rollback."""


class Troubles:
    """The troubles of one recording."""

    def __init__(self) -> None:
        self._open: dict[str, _Trouble] = {}
        self._begun: dict[str, int] = {}

    def is_news(self, event: Finding) -> bool:
        """Whether to say this finding."""
        if event.severity < Severity.WARNING:
            return False
        if event.kind in ACTIONS:
            return True
        family = "" if event.kind in _SAME_TROUBLE else f"{event.kind}@{event.place}"
        rank = _rank(event)
        trouble = self._open.get(family)
        if trouble is None or abs(event.step - trouble.last) > GAP:
            is_said = self._is_said_again(event.kind)
            self._open[family] = _Trouble(event.step, rank, {event.kind}, event if is_said else None)
            return is_said
        trouble.last = max(trouble.last, event.step)
        if rank <= trouble.rank or event.kind in trouble.types:
            return False
        trouble.rank = rank
        trouble.types.add(event.kind)
        trouble.said = event
        return True

    def said_before(self, step: int) -> Finding | None:
        """What was said of the instability that goes on at this step, if anything was."""
        trouble = self._open.get("")
        return trouble.said if trouble is not None and abs(step - trouble.last) <= GAP else None

    def answered(self, step: int) -> None:
        """The training was rolled back: what is found in the next steps still belongs to the same trouble."""
        self._open[""] = _Trouble(step, 2, {"divergence"})

    @staticmethod
    def is_instability(event: Finding) -> bool:
        """Whether the training became unstable, so that skipping a step or a rollback may answer it."""
        return event.kind in _SAME_TROUBLE

    @staticmethod
    def is_traced(event: Finding, origin: Finding) -> bool:
        """Whether a finding is the NaN whose origin was found, or what came of it."""
        late = event.step - origin.step
        return late == 0 if event.kind == "step_skipped" else event.kind in _NON_FINITE and 0 <= late <= GAP

    def _is_said_again(self, kind: str) -> bool:
        begun = self._begun[kind] = self._begun.get(kind, 0) + 1
        return begun <= AS_BEFORE or begun & (begun - 1) == 0


def _rank(event: Finding) -> int:
    if event.kind in _NON_FINITE:
        return 3
    return 2 if event.severity >= Severity.CRITICAL and event.kind not in _JUMPS else 1
