"""Chooses the rules that judge whole curves by the detectors that were asked for.

In: detectors. Out: rules with thresholds as theirs, and which of their findings are asked for. A rule judges for the
detector of its kind: who asks for other kinds, or for another way of finding that kind (``loss_spike:classic``), does
not get it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.divergence import Divergence
from mlflow_stability.detectors.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.loss_spike import LossSpike
from mlflow_stability.detectors.overfitting import Overfitting
from mlflow_stability.diagnosis.curves import RunCurves
from mlflow_stability.diagnosis.divergence_rule import DivergenceRule
from mlflow_stability.diagnosis.overfitting_rule import OverfittingRule
from mlflow_stability.diagnosis.rule import Rule
from mlflow_stability.diagnosis.spike_rule import SpikeRule
from mlflow_stability.vocabulary.episode import Episode


def found_by(rules: Iterable[type[Rule]], curves: RunCurves, detectors: Sequence[Detector]) -> list[Episode]:
    """What these rules find, of the kinds that were asked for."""
    kinds = {each.kind for each in detectors if not each.rule}
    found = [episode for rule in rules for episode in _as_asked(rule(), detectors).find(curves)]
    return [each for each in found if each.kind in kinds]


def changed_kinds(detectors: Sequence[Detector]) -> set[str]:
    """The kinds that somebody set a threshold of; what is above it is not made milder."""
    usual = {LossSpike.kind: LossSpike(), GradientExplosion.kind: GradientExplosion()}
    own = [each for each in detectors if isinstance(each, LossSpike | GradientExplosion)]
    return {each.kind for each in own if each != usual[each.kind]}


def _as_asked(rule: Rule, detectors: Sequence[Detector]) -> Rule:
    """The rule with the thresholds of its detector, or as far from the usual as those are."""
    for each in detectors:
        if isinstance(rule, SpikeRule) and isinstance(each, LossSpike):
            return _spikes(rule, each.threshold / LossSpike().threshold)
        if isinstance(rule, DivergenceRule) and isinstance(each, Divergence):
            of_players = math.log(each.smallest_rise_of_players)
            return replace(rule, smallest_rise=math.log(each.smallest_rise), smallest_rise_of_a_game=of_players)
        if isinstance(rule, OverfittingRule) and isinstance(each, Overfitting):
            changed = each.smallest_rise != Overfitting().smallest_rise  # else a whole curve tells less of a rise
            smallest = math.log(each.smallest_rise) if changed else rule.smallest_rise
            return replace(rule, smallest_rise=smallest, smallest_fall=-math.log(each.train_fell))
    return rule


def _spikes(rule: SpikeRule, factor: float) -> SpikeRule:
    few, many = rule.deviations
    agreeing, with_gradient = rule.agreeing, rule.agreeing_with_gradient
    return replace(
        rule,
        deviations=(factor * few, factor * many),
        agreeing=(factor * agreeing[0], agreeing[1]),
        agreeing_with_gradient=(factor * with_gradient[0], with_gradient[1]),
    )
