"""Grows a shallow tree that tells unstable runs from stable ones, and says how far it can be believed.

In: the features of runs and their outcomes. Out: its rules as sentences, and how often it guesses right about runs
that it did not see, beside always saying what most runs are. Guarantees: of those it has not seen repetitions either;
the same runs give the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from mlflow_stability.diagnosis.parameters.exposure import Watched
from mlflow_stability.diagnosis.parameters.features import NOT_SET, Feature
from mlflow_stability.diagnosis.parameters.split import middles_of
from mlflow_stability.vocabulary.result import Tree

FEWEST_RUNS, FEWEST_OF_A_KIND = 20, 5
DEPTH = 3
PRUNED = 0.01
"""A branch that makes the tree less mixed by no more than this is cut."""
FOLDS = 5
BELIEVED = 0.01
"""It is better than its baseline if chance makes it so less often than this."""
MOST_RULES = 4
_Column = tuple[str, str, NDArray[np.float64], Sequence[float]]
"""A name, its level for words, what the tree sees, and for numbers the limits between neighbouring values."""


def tree_of(features: Sequence[Feature], watched: Watched) -> Tree | None:
    """The tree; None where there are too few runs or settings to hold some back, or nothing to part them by."""
    outcome, settings = watched.troubled, watched.settings
    if len(np.unique(settings)) < 2 * FOLDS:
        return None
    if len(outcome) < FEWEST_RUNS or min(outcome.sum(), (~outcome).sum()) < FEWEST_OF_A_KIND or not features:
        return None
    columns = [column for feature in features for column in _columns(feature)]
    table = np.stack([values for _, _, values, _ in columns], axis=1)
    grower = DecisionTreeClassifier(
        max_depth=DEPTH, min_samples_leaf=max(3, len(outcome) // 20), ccp_alpha=PRUNED, random_state=0
    )
    folds = (StratifiedGroupKFold if watched.repeated else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
    guessed = cross_val_predict(grower, table, outcome, cv=folds, groups=settings if watched.repeated else None).astype(
        bool
    )
    usual = bool(outcome.mean() >= 0.5)
    accuracy, baseline = float((guessed == outcome).mean()), float((outcome == usual).mean())
    grown = grower.fit(table, outcome)
    rules = sorted(_leaves(grown, columns, table, outcome), key=lambda each: -each[0])
    worst = tuple(said for share, said in rules if share > 0.5)[:MOST_RULES]
    return Tree(worst, accuracy, baseline, _better(guessed, usual, outcome, settings))


def _better(guessed: NDArray[np.bool_], usual: bool, outcome: NDArray[np.bool_], settings: NDArray[np.int64]) -> bool:
    """Where the tree says something else than the baseline, is it right about more settings than a coin?"""
    gained = (guessed == outcome).astype(np.int64) - (outcome == usual)
    by_setting = np.bincount(settings, weights=gained)
    right, asked = int((by_setting > 0).sum()), int((by_setting != 0).sum())
    return asked > 0 and float(stats.binomtest(right, asked, 0.5, alternative="greater").pvalue) < BELIEVED


def _columns(feature: Feature) -> Iterator[_Column]:
    """Numbers for the tree: whether it is a level; of a number its place among all, for a tree reckons in 32 bits."""
    if not feature.numeric:
        for place, level in enumerate(feature.levels):
            yield feature.name, level, (feature.values == place).astype(np.float64), ()
        return
    missing = np.isnan(feature.values)
    known = np.unique(feature.values[~missing])
    limits = middles_of(known[:-1], known[1:], positive=bool((known > 0).all()))
    yield feature.name, "", np.where(missing, -1.0, np.searchsorted(known, feature.values)), limits.tolist()


def _leaves(
    grown: DecisionTreeClassifier,
    columns: Sequence[_Column],
    table: NDArray[np.float64],
    outcome: NDArray[np.bool_],
) -> Iterator[tuple[float, str]]:
    """For each leaf its share of unstable runs, and what its runs have in common."""
    nodes = grown.tree_
    leaf_of = grown.apply(table)
    walk: list[tuple[int, list[tuple[int, float, bool]]]] = [(0, [])]
    while walk:
        node, path = walk.pop()
        if nodes.children_left[node] == -1:
            here = outcome[leaf_of == node]
            said = " and ".join(_conditions(path, columns)) or "all runs"
            yield float(here.mean()), f"{said}: {int(here.sum())} of {len(here)} runs unstable"
            continue
        column, limit = int(nodes.feature[node]), float(nodes.threshold[node])
        walk.append((int(nodes.children_left[node]), [*path, (column, limit, False)]))
        walk.append((int(nodes.children_right[node]), [*path, (column, limit, True)]))


def _conditions(path: Sequence[tuple[int, float, bool]], columns: Sequence[_Column]) -> Iterator[str]:
    """What a path asks, each column once: the narrowest limits of a number."""
    for column in dict.fromkeys(each for each, _, _ in path):
        name, level, _, limits = columns[column]
        above = [limit for each, limit, is_above in path if each == column and is_above]
        below = [limit for each, limit, is_above in path if each == column and not is_above]
        if level:
            yield f"{name} {level}" if above else f"{name} not {level}"
        elif below and min(below) < 0:
            yield f"{name} {NOT_SET}"
        else:
            least = max(above, default=-1.0)
            parts = [f"> {limits[int(least)]:.3g}"] if least >= 0 else ["set"] if above and not below else []
            parts += [f"≤ {limits[int(min(below))]:.3g}"] if below else []
            yield f"{name} {' and '.join(parts)}"
