"""Says what many runs have in common.

In: cards. Out: a `Cohort`: what to expect over seeds, how long runs last, how sensitive they are to the learning rate,
and which parameters are associated with instability. Guarantees: where runs are too few,
that is said and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.associations import AssociationResult, associations_of
from mlflow_stability.diagnosis.cohort.learning_rate_sensitivity import sensitivity_of
from mlflow_stability.diagnosis.cohort.seed_groups import FEWEST, groups_of_seeds, seed_groups_of, stopped_early
from mlflow_stability.diagnosis.cohort.survival import survival_of
from mlflow_stability.diagnosis.parameters.features import NOT_SET, Feature
from mlflow_stability.vocabulary.result import Cohort, ParamPlot, SeedGroup, Tree
from mlflow_stability.vocabulary.run import RunCard
from mlflow_stability.vocabulary.text import counted

FEWEST_RUNS = 3
"""Fewer are compared one by one."""
MOST_PLOTS = 6
"""So many parameters are drawn."""


def cohort_of(cards: Sequence[RunCard]) -> Cohort | None:
    """What these have in common; None for fewer than three that could be read."""
    readable = [card for card in cards if card.readable]
    if len(readable) < FEWEST_RUNS:
        return None
    found = associations_of(readable)
    groups = seed_groups_of(readable)
    sensitivity, left_out = sensitivity_of(readable)
    return Cohort(
        runs=len(readable),
        unstable=sum(card.unstable is True for card in readable),
        groups=groups,
        survival=survival_of(readable, _parts(readable, groups, found)),
        sensitivity=sensitivity,
        associations=found.associations,
        tree=_tree(found),
        plots=_plots(found),
        tested=tuple(each.name for each in found.features),
        undecided=found.undecided,
        confounded=found.warnings,
        cannot_tell=(*found.cannot_tell, *_unclear(readable, groups), *([left_out] if left_out else [])),
    )


def _tree(found: AssociationResult) -> Tree | None:
    """Over what is named; where nothing is, over everything, so as to say that it is no better than guessing."""
    named = {name for each in found.associations for name in each.params}
    asked = [each for each in found.features if each.name in named or not named]
    if not asked or found.watched is None:
        return None
    from mlflow_stability.diagnosis.associations.instability_tree import tree_of

    return tree_of(asked, found.watched)


def _parts(
    cards: Sequence[RunCard], groups: Sequence[SeedGroup], found: AssociationResult
) -> Mapping[str, Sequence[RunCard]]:
    """By which parts time to divergence is looked at: repetitions where there are enough, else what was named first."""
    big = [group for group in groups if len(group.sources) >= FEWEST]
    if len(big) >= 2:
        by_source = {card.source: card for card in cards}
        return {group.label: [by_source[each] for each in group.sources] for group in big}
    if not found.associations:
        return {}
    name = found.associations[0].params[0]
    feature = next(each for each in found.features if each.name == name)
    return _halves(feature, found.judged)


def _halves(feature: Feature, judged: Sequence[RunCard]) -> Mapping[str, Sequence[RunCard]]:
    """The levels of a parameter; of a number the upper and the lower half, which no outcome had a say in."""
    if not feature.numeric:
        return {
            f"{feature.name} {level}": [c for c, value in zip(judged, feature.values, strict=True) if value == place]
            for place, level in enumerate(feature.levels)
        }
    values = feature.values
    known = values[~np.isnan(values)]
    middle = float(np.median(known))
    if middle == known.max():  # more than half of them have the highest value
        middle = float(known[known < middle].max())
    sides = {
        f"{feature.name} ≤ {middle:.3g}": values <= middle,
        f"{feature.name} > {middle:.3g}": values > middle,
        f"{feature.name} {NOT_SET}": np.isnan(values),
    }
    return {label: [card for card, is_in in zip(judged, side, strict=True) if is_in] for label, side in sides.items()}


def _plots(found: AssociationResult) -> tuple[ParamPlot, ...]:
    """Those that are named first, then the others: first what people choose."""
    named = [name for each in found.associations for name in each.params]
    order = sorted(found.features, key=lambda each: named.index(each.name) if each.name in named else len(named))
    return tuple(
        ParamPlot(
            feature.name,
            tuple(feature.values.tolist()),
            feature.levels,
            tuple(bool(card.unstable) for card in found.judged),
            tuple(card.final_loss for card in found.judged),
            feature.name in named,
        )
        for feature in order[: max(MOST_PLOTS, len(named))]
    )


def _unclear(cards: Sequence[RunCard], groups: Sequence[SeedGroup]) -> list[str]:
    said = []
    repeated = groups_of_seeds(cards)
    if not groups:
        said.append("Variation over seeds: no two runs differ only in the seed.")
    elif all(len(group.sources) < FEWEST for group in groups):
        most = max(map(len, repeated))
        said.append(f"Variation over seeds: at most {most} seeds of one setting, {FEWEST} are needed.")
    early = sum(len(stopped_early(group)) for group in repeated if len(group) > 1)
    if groups and early:
        said.append(f"Final loss of {counted(early, 'run')}: stopped early, and not counted over seeds.")
    unjudged = sum(card.unstable is None for card in cards)
    if unjudged:
        said.append(f"Stability of {unjudged} of the runs: too short, or without a loss.")
    return said
