"""Says what of a run cannot be judged, and why: never a guess.

In: a history and its curves. Out: sentences; none where everything that is looked for could be looked for.
"""

from __future__ import annotations

from mlflow_stability.diagnosis.curves import RunCurves
from mlflow_stability.diagnosis.divergence_rule import DivergenceRule
from mlflow_stability.diagnosis.overfitting_rule import OverfittingRule
from mlflow_stability.diagnosis.plateau_rule import PlateauRule
from mlflow_stability.diagnosis.silence import silence_of, single_loss
from mlflow_stability.diagnosis.spike_rule import SpikeRule
from mlflow_stability.vocabulary.counted import counted
from mlflow_stability.vocabulary.run_history import RunHistory


def limits_of(history: RunHistory, curves: RunCurves) -> tuple[str, ...]:
    """What could not be judged."""
    found: list[str] = []
    losses = [curve for curve in curves.losses if not curve.part]
    single = single_loss(history)
    if not losses and single:
        found.append(f"Spikes, divergence and plateaus of the training loss: {single}.")
    elif not losses:
        found.append("Spikes, divergence and plateaus of the training loss: no training loss was logged.")
    else:
        longest = max(losses, key=lambda curve: len(curve.values))
        points = len(longest.values)
        for judged, needed in (
            ("Spikes and divergence", max(SpikeRule().fewest_points, DivergenceRule().fewest_points)),
            ("Plateaus", PlateauRule().fewest_points),
        ):
            if points < needed:
                found.append(f"{judged}: {longest.name} has {counted(points, 'point')}, {needed} are needed.")
        games = [curve.name for curve in losses if curve.game]
        if games:
            found.append(
                f"Progress by {_listed(games)}: the loss of a player in a game, or of a policy, does not measure it; "
                "such are judged for non-finite values"
                + ("." if all(curve.valued for curve in losses if curve.game) else " and for rising tenfold.")
            )
    silence = silence_of(history)
    if silence:
        found.append(f"How the training went on at the end: {silence}.")
    validations = max((len(curve.values) for curve in curves.validations), default=0)
    if not validations:
        found.append("Overfitting: no validation loss was logged.")
    elif validations < OverfittingRule().fewest_validations:
        needed = OverfittingRule().fewest_validations
        found.append(f"Overfitting: {counted(validations, 'validation')}, {needed} are needed.")
    if not curves.norms:
        found.append("Gradients: no gradient norm was logged.")
    if history.gaps:
        missing = ", ".join(f"{gap.first_step}-{gap.last_step}" for gap in history.gaps[:5])
        found.append(f"Steps that could not be recorded: {missing}.")
    return tuple(found)


def _listed(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")
