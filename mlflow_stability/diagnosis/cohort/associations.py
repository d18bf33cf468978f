"""Parameters that are associated with instability.

Guarantees: the chance of naming one unrelated parameter is about one in a hundred, however many there are, and up to
four in a hundred where settings were repeated; too few runs are reported as too few. A run counts for as long as it was
recorded.

The parameter with the strongest association is named first. From then on, only runs that are alike in the named
parameters are compared. A parameter that merely moves with a named one is therefore not named too, and one that matters
only beside it, such as a warm-up at high learning rates, is.

Repetitions of one setting with other seeds share more than the parameter in question. So where settings were repeated,
a parameter must also be associated when each setting counts once; one that does not is reported as too few settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.cohort.association_tests import CONFIG as TESTS
from mlflow_stability.diagnosis.cohort.association_tests import holm, p_value_of, rank_correlation, strata_of
from mlflow_stability.diagnosis.cohort.features import Exposure, Feature, Split, best_split, exposure_of, features_of
from mlflow_stability.vocabulary.result import Association, RunCard
from mlflow_stability.vocabulary.text.phrases import capitalised


@dataclass(frozen=True, slots=True)
class AssociationConfig:
    min_runs: int = 10  # runs below which nothing is tested
    max_p: float = 0.01  # p-value over runs, after Holm's correction, below which a parameter is named
    max_p_of_settings: float = 0.04  # the same where each setting counts once, however alike repetitions are
    max_named: int = 4
    similar_shares: float = 0.1  # shares of unstable runs that differ less have the median start of trouble beside them
    min_correlation: float = 0.9  # rank correlation of two numbers above which a warning is given
    max_warnings: int = 5


CONFIG = AssociationConfig()


@dataclass(frozen=True, slots=True)
class AssociationResult:
    associations: tuple[Association, ...] = ()
    features: tuple[Feature, ...] = ()  # of the judged runs
    judged: tuple[RunCard, ...] = ()  # the runs whose stability was judged
    undecided: bool = False  # whether too few runs or settings keep a parameter from being named; see `cannot_tell`
    warnings: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(name for association in self.associations for name in association.params)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """Parameters that change together, and their p-values, corrected for all candidates."""

    group: list[Feature]
    by_run: float
    by_setting: float  # 0 where it need not be computed

    @property
    def significant(self) -> bool:
        return self.by_run < CONFIG.max_p and self.by_setting < CONFIG.max_p_of_settings


def associations_of(cards: Sequence[RunCard]) -> AssociationResult:
    judged = tuple(card for card in cards if card.unstable is not None)
    exposure = exposure_of(judged)
    features, left_out = features_of(judged)
    unstable = int(exposure.troubled.sum())
    few = "" if features else "Parameters associated with instability: the runs have equal parameters."
    if len(judged) < CONFIG.min_runs or min(unstable, len(judged) - unstable) < TESTS.min_runs:
        few = (
            f"Parameters associated with instability: {unstable} of {len(judged)} judged runs were unstable; at least "
            f"{CONFIG.min_runs} runs are needed, {TESTS.min_runs} of each kind."
        )
    if few:
        return AssociationResult((), tuple(features), judged, undecided=True, cannot_tell=(few,))
    groups = _group_equivalent(features, len(np.unique(exposure.settings)))
    by_setting = exposure.repeated and len(groups) > 1  # with one group alone, its values are the settings
    first = candidates = _candidates(groups, exposure, [], by_setting)
    associations: list[Association] = []
    named: list[Feature] = []
    while candidates and candidates[0].significant:
        best = candidates[0]
        associations.append(_association(best, exposure, named))
        named.append(best.group[0])
        groups_left = [group for group in groups if group[0] not in named]
        full = len(named) == CONFIG.max_named
        candidates = [] if full else _candidates(groups_left, exposure, named, by_setting)
    doubtful = _doubtful(candidates, exposure, named)
    warnings = (*_warnings(groups, named), *_explained_away(first, named))
    cannot_tell = (*doubtful, *left_out)
    return AssociationResult(tuple(associations), tuple(features), judged, bool(doubtful), warnings, cannot_tell)


def _candidates(
    groups: Sequence[list[Feature]], exposure: Exposure, beside: list[Feature], by_setting: bool
) -> list[_Candidate]:
    """Test each group among runs that are alike in ``beside``; the most significant candidate comes first."""
    strata = strata_of(beside, exposure.settings) if beside else None
    tests = len(groups)
    p_values = [p_value_of(group[0], exposure, strata, tests=tests) for group in groups]
    tested = {place: p for place, p in enumerate(p_values) if p is not None}
    candidates = []
    for place, p in zip(tested, holm(list(tested.values())), strict=True):
        of_settings = 0.0
        if by_setting and p < CONFIG.max_p:
            alone = p_value_of(groups[place][0], exposure, strata, by_setting=True, tests=tests)
            of_settings = 1.0 if alone is None else min(1.0, len(tested) * alone)
        candidates.append(_Candidate(groups[place], p, of_settings))
    return sorted(candidates, key=lambda candidate: (not candidate.significant, candidate.by_run))


def _group_equivalent(features: Sequence[Feature], settings: int) -> list[list[Feature]]:
    """Group features that always change together; numbers come first in a group, because they can be ordered.

    Where hardly any two of the ``settings`` share a value, features change together by chance.
    """
    groups: list[list[Feature]] = []
    group_of: dict[bytes, list[Feature]] = {}
    for feature in features:
        keys = list(_orders(feature, settings))
        group = next((group_of[key] for key in keys if key in group_of), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(feature)
        for key in keys:
            group_of.setdefault(key, group)
    return [sorted(group, key=lambda feature: not feature.numeric) for group in groups]


def _orders(feature: Feature, settings: int) -> Iterator[bytes]:
    """What two features that change together share: their order, rising or falling, and which runs are alike."""
    is_set = ~np.isnan(feature.values)
    if feature.numeric:
        ranks = np.zeros(len(is_set))
        ranks[is_set] = stats.rankdata(feature.values[is_set])
        reversed_ranks = np.where(is_set, is_set.sum() + 1 - ranks, 0.0)
        yield b"order" + min(ranks.tobytes(), reversed_ranks.tobytes())
    _, first, alike = np.unique(np.where(is_set, feature.values, -np.inf), return_index=True, return_inverse=True)
    if len(first) <= settings // 2 or not feature.numeric:
        yield b"alike" + first[alike.reshape(-1)].tobytes()


def _warnings(groups: Sequence[Sequence[Feature]], named: Sequence[Feature]) -> list[str]:
    """Warn about parameters that move with a named one."""
    names = {feature.name for feature in named}
    warnings = [
        f"{' and '.join(sorted(feature.name for feature in group))} change together in all of these runs: vary them "
        "separately to see which one matters."
        for group in groups
        if len(group) > 1 and group[0].name in names
    ]
    for feature, (other, *_) in product(named, groups):
        if other.name in names or not (feature.numeric and other.numeric):
            continue
        correlation = rank_correlation(feature.values, other.values)
        if correlation is not None and abs(correlation) >= CONFIG.min_correlation:
            warnings.append(
                f"{feature.name} and {other.name} are correlated (rank correlation {correlation:.2f}): an association "
                "with one may come from the other."
            )
    more = len(warnings) - CONFIG.max_warnings
    return warnings if more <= 0 else [*warnings[: CONFIG.max_warnings], f"{more} more such pairs."]


def _association(candidate: _Candidate, exposure: Exposure, beside: Sequence[Feature]) -> Association:
    feature = candidate.group[0]
    split = best_split(feature, exposure.troubled)
    return Association(
        tuple(sorted(feature.name for feature in candidate.group)),
        _statement(feature, exposure, beside),
        max(candidate.by_run, candidate.by_setting),
        rank_correlation(feature.values, exposure.troubled.astype(np.float64)) if feature.numeric else None,
        tuple(feature.name for feature in beside),
        split.limit if feature.numeric and split is not None else None,
    )


def _explained_away(alone: Sequence[_Candidate], named: Sequence[Feature]) -> list[str]:
    """Report candidates that are significant alone and not beside the named ones."""
    names = {feature.name for feature in named}
    others = ", ".join(sorted(names))
    return [
        f"{candidate.group[0].name} is associated with instability as well, but not among runs with similar {others}."
        for candidate in alone
        if names and candidate.significant and candidate.group[0].name not in names
    ]


def _doubtful(candidates: Sequence[_Candidate], exposure: Exposure, named: Sequence[Feature]) -> list[str]:
    """Report candidates that are significant over runs and not over settings."""
    count = len(np.unique(exposure.settings))
    beside = f" beside {', '.join(feature.name for feature in named)}" if named else ""
    doubtful = [candidate for candidate in candidates if candidate.by_run < CONFIG.max_p]
    sentences = []
    for candidate in doubtful[: CONFIG.max_named]:
        names = " / ".join(sorted(feature.name for feature in candidate.group))
        statement = _statement(candidate.group[0], exposure, named).removesuffix(".")
        sentences.append(
            f"Association of {names} with instability{beside}: {statement}; only {count} different settings, too few "
            "to separate it from other differences."
        )
    return sentences


def _statement(feature: Feature, exposure: Exposure, beside: Sequence[Feature]) -> str:
    """``Lr > 0.003: 61 of 80 unstable; lr ≤ 0.003: 5 of 120.``

    Beside other features, the counts are those of the runs on the worse side of the first of them, if these differ
    more.
    """
    outcome = exposure.troubled
    split = best_split(feature, outcome)
    outer = best_split(beside[0], outcome) if beside else None
    if outer is not None:
        inner = best_split(feature, outcome, outer.worse)
        if inner is not None and _contrast(inner, outcome, outer.worse) > _contrast(split, outcome):
            return f"Among runs with {outer.words}: {_counts(inner, outcome, outer.worse)}."
    statement = _counts(split, outcome)
    if split is not None and abs(_contrast(split, outcome)) < CONFIG.similar_shares and np.ptp(exposure.steps):
        worse, other = (exposure.steps[outcome & side] for side in (split.worse, ~split.worse))
        if len(worse) and len(other):
            statement += f"; median start at step {np.median(worse):,.0f} and {np.median(other):,.0f}"
    return f"{capitalised(statement)}."


def _counts(split: Split | None, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> str:
    if split is None:
        return "associated with the outcome, with too few runs per value for counts"
    worse, other = _outcomes(split, outcome, among)
    return (
        f"{split.words}: {int(worse.sum())} of {len(worse)} unstable; "
        f"{split.other_words}: {int(other.sum())} of {len(other)}"
    )


def _contrast(split: Split | None, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> float:
    if split is None:
        return 0.0
    worse, other = _outcomes(split, outcome, among)
    return float(worse.mean() - other.mean())


def _outcomes(
    split: Split, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    among = np.ones(len(outcome), bool) if among is None else among
    return outcome[among & split.worse], outcome[among & ~split.worse]
