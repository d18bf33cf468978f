"""Choose the rules for whole curves by the detectors that were asked for.

In: detectors. Out: rules with thresholds as theirs, and which of their findings are asked for. A rule judges for the
detector of its kind: who asks for other kinds, or for another way of finding that kind (``loss_spike:classic``), does
not get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.sensitivity import factor_of, moved, only_moved
from mlflow_stability.kinds.catalog import EXPERIMENTAL, RULES, SEEN_FROM_OUTSIDE
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.kinds.rule_scores import with_scores
from mlflow_stability.vocabulary.judging_rule import CLASSIC
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RUN_STATUS

WHERE_JUDGED_LIVE = tuple(each for each in RULES if not each.only_without_detectors)
"""What is still asked where detectors watched the training: what only the whole curve shows."""
OF_VALIDATIONS = tuple(each for each in RULES if each.of_validations)
"""And what is asked of validation losses there, which the script logs itself and no detector saw."""


def found_by(rules: Iterable[type[Rule]], curves: RunCurves, detectors: Sequence[Detector]) -> list[Finding]:
    """What these rules find, of the kinds that were asked for."""
    found: list[Finding] = []
    for rule in rules:
        asked = _as_asked(rule(), detectors)
        seen = asked_for(asked.find(curves), detectors)
        found += with_scores(seen, asked, _factor(asked, detectors), curves)
    return [_as_experimental(episode) if episode.kind in EXPERIMENTAL else episode for episode in found]


def _as_experimental(episode: Finding) -> Finding:
    """What a rule finds for a detector that is not relied upon yet."""
    return replace(episode, experimental=True, severity=Severity.INFO)


def asked_for(episodes: Iterable[Finding], detectors: Sequence[Detector]) -> list[Finding]:
    """Those of the kinds that were asked for; what no detector finds, as the end of a process, is always told."""
    kinds = {each.kind for each in detectors if not each.rule} | {
        *RUN_STATUS,
        *(each.kind for each in SEEN_FROM_OUTSIDE),
    }
    return [each for each in episodes if each.kind in kinds]


def changed_kinds(detectors: Sequence[Detector]) -> set[str]:
    """The kinds that somebody set a threshold of, or wants by a classic rule alone: what they find stays as it is."""
    own = {each.kind for each in detectors if isinstance(each, FindingType) and not each.rule and not only_moved(each)}
    usual = {each.kind for each in detectors if each.rule != CLASSIC}
    return own | {each.kind for each in detectors if each.rule == CLASSIC and each.kind not in usual}


def _as_asked(rule: Rule, detectors: Sequence[Detector]) -> Rule:
    """The rule at the sensitivity of the detector of its kind, or with the thresholds that this one was given."""
    own = _detector_of(rule, detectors)
    if own is None:
        return rule
    return moved(rule, factor_of(own)) if only_moved(own) else rule.like(own)


def _factor(rule: Rule, detectors: Sequence[Detector]) -> float:
    """By how much the detector that looks for the same kind is stricter or looser than usual."""
    own = _detector_of(rule, detectors)
    return 1.0 if own is None else factor_of(own)


def _detector_of(rule: Rule, detectors: Sequence[Detector]) -> Detector | None:
    """The detector of the rule's kind; not one that a user wrote and that only has the methods of one."""
    of_kind = (each for each in detectors if each.kind == rule.kind and not each.rule)
    return next((each for each in of_kind if isinstance(each, FindingType)), None)
