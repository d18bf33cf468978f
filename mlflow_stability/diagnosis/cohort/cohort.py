"""Summarise many runs: variation over seeds, survival, sensitivity to the learning rate, associated parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.cohort.associations import AssociationResult, associations_of
from mlflow_stability.diagnosis.cohort.learning_rate_sensitivity import sensitivity_of
from mlflow_stability.diagnosis.cohort.seed_groups import MIN_SEEDS, groups_of_seeds, seed_groups_of, stopped_early
from mlflow_stability.diagnosis.cohort.survival import survival_of
from mlflow_stability.diagnosis.parameters.features import NOT_SET, Feature
from mlflow_stability.vocabulary.result import Cohort, ParamPlot, RunCard, SeedGroup, Tree
from mlflow_stability.vocabulary.text import counted

MIN_RUNS = 3
"""Fewer runs are compared one by one."""
MAX_PLOTS = 6
"""Parameters that are drawn, unless more are associated with instability."""


def cohort_of(cards: Sequence[RunCard]) -> Cohort | None:
    """Summarise the runs; None for fewer than three readable ones."""
    readable = [card for card in cards if card.readable]
    if len(readable) < MIN_RUNS:
        return None
    result = associations_of(readable)
    repeated = groups_of_seeds(readable)
    groups = seed_groups_of(repeated)
    sensitivity, left_out = sensitivity_of(readable)
    return Cohort(
        runs=len(readable),
        unstable=sum(card.unstable is True for card in readable),
        groups=groups,
        survival=survival_of(readable, _survival_parts(readable, groups, result)),
        sensitivity=sensitivity,
        associations=result.associations,
        tree=_tree(result),
        plots=_plots(result),
        tested=tuple(feature.name for feature in result.features),
        undecided=result.undecided,
        confounded=result.warnings,
        cannot_tell=(*result.cannot_tell, *_not_judged(readable, repeated), *([left_out] if left_out else [])),
    )


def _tree(result: AssociationResult) -> Tree | None:
    """Grow it over associated parameters; without any over all, to show that it is no better than its baseline."""
    features = [feature for feature in result.features if feature.name in result.named or not result.named]
    if not features or result.exposure is None:
        return None
    from mlflow_stability.diagnosis.cohort.instability_tree import tree_of

    return tree_of(features, result.exposure)


def _survival_parts(
    cards: Sequence[RunCard], groups: Sequence[SeedGroup], result: AssociationResult
) -> Mapping[str, Sequence[RunCard]]:
    """Return groups of repetitions if there are enough, else the values of the strongest parameter."""
    large = [group for group in groups if len(group.sources) >= MIN_SEEDS]
    if len(large) >= 2:
        by_source = {card.source: card for card in cards}
        return {group.label: [by_source[source] for source in group.sources] for group in large}
    if not result.named:
        return {}
    feature = next(feature for feature in result.features if feature.name == result.associations[0].params[0])
    return _levels_or_halves(feature, result.judged)


def _levels_or_halves(feature: Feature, judged: Sequence[RunCard]) -> Mapping[str, Sequence[RunCard]]:
    """Split numbers at their median, which does not depend on the outcome."""
    values = feature.values
    if feature.numeric:
        numbers = values[~np.isnan(values)]
        middle = float(np.median(numbers))
        if middle == numbers.max():  # more than half of the runs have the highest value
            middle = float(numbers[numbers < middle].max())
        sides = {
            f"{feature.name} ≤ {middle:.3g}": values <= middle,
            f"{feature.name} > {middle:.3g}": values > middle,
            f"{feature.name} {NOT_SET}": np.isnan(values),
        }
    else:
        sides = {f"{feature.name} {level}": values == place for place, level in enumerate(feature.levels)}
    return {label: [card for card, inside in zip(judged, side, strict=True) if inside] for label, side in sides.items()}


def _plots(result: AssociationResult) -> tuple[ParamPlot, ...]:
    """Plot associated parameters first, then the others in the order of the features."""
    named = result.named
    order = sorted(
        result.features, key=lambda feature: named.index(feature.name) if feature.name in named else len(named)
    )
    return tuple(
        ParamPlot(
            feature.name,
            tuple(feature.values.tolist()),
            feature.levels,
            tuple(bool(card.unstable) for card in result.judged),
            tuple(card.final_loss for card in result.judged),
            feature.name in named,
        )
        for feature in order[: max(MAX_PLOTS, len(named))]
    )


def _not_judged(cards: Sequence[RunCard], repeated: Sequence[Sequence[RunCard]]) -> list[str]:
    sentences = []
    most = max(map(len, repeated))
    if most < 2:
        sentences.append("Variation over seeds: no two runs differ only in the seed.")
    elif most < MIN_SEEDS:
        sentences.append(f"Variation over seeds: at most {most} seeds of one setting, {MIN_SEEDS} are needed.")
    early = sum(len(stopped_early(group)) for group in repeated if len(group) > 1)
    if early:
        sentences.append(f"Final loss of {counted(early, 'run')}: stopped early, and not counted over seeds.")
    unjudged = sum(card.unstable is None for card in cards)
    if unjudged:
        sentences.append(f"Stability of {unjudged} of the runs: too short, or without a loss.")
    return sentences
