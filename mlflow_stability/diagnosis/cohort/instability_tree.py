"""Shallow decision tree that separates unstable runs from stable ones, with its accuracy on runs that it has not seen.

Repetitions of a setting are held back together. In a module of its own, because it loads scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from mlflow_stability.diagnosis.parameters.features import NOT_SET, Exposure, Feature, middles_of
from mlflow_stability.vocabulary.result import Tree

MIN_RUNS, MIN_RUNS_OF_A_CLASS = 20, 5
MAX_DEPTH = 3
PRUNING_ALPHA = 0.01
FOLDS = 5
MAX_P = 0.01
"""The tree is better than its baseline if chance makes it so less often than this."""
MAX_RULES = 4
_Column = tuple[str, str, NDArray[np.float64], Sequence[float]]
"""Name, level, values for the tree, and for numbers the limits between neighbouring values."""


def tree_of(features: Sequence[Feature], exposure: Exposure) -> Tree | None:
    """Return the tree; None for too few runs or settings to hold some back, or no features."""
    outcome, settings = exposure.troubled, exposure.settings
    if len(np.unique(settings)) < 2 * FOLDS:
        return None
    if len(outcome) < MIN_RUNS or min(outcome.sum(), (~outcome).sum()) < MIN_RUNS_OF_A_CLASS or not features:
        return None
    columns = [column for feature in features for column in _columns(feature)]
    table = np.stack([values for _, _, values, _ in columns], axis=1)
    classifier = DecisionTreeClassifier(
        max_depth=MAX_DEPTH,
        min_samples_leaf=max(3, len(outcome) // 20),
        ccp_alpha=PRUNING_ALPHA,
        random_state=0,
    )
    folds = (StratifiedGroupKFold if exposure.repeated else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
    groups = settings if exposure.repeated else None
    predicted = cross_val_predict(classifier, table, outcome, cv=folds, groups=groups).astype(bool)
    majority = bool(outcome.mean() >= 0.5)
    accuracy, baseline = float((predicted == outcome).mean()), float((outcome == majority).mean())
    leaves = sorted(_leaves(classifier.fit(table, outcome), columns, table, outcome), key=lambda leaf: -leaf[0])
    rules = tuple(rule for share, rule in leaves if share > 0.5)[:MAX_RULES]
    return Tree(rules, accuracy, baseline, _is_better(predicted, majority, outcome, settings))


def _is_better(
    predicted: NDArray[np.bool_], majority: bool, outcome: NDArray[np.bool_], settings: NDArray[np.int64]
) -> bool:
    """Whether, where the tree differs from the baseline, it is right about more settings than chance (sign test)."""
    gained = (predicted == outcome).astype(np.int64) - (outcome == majority)
    by_setting = np.bincount(settings, weights=gained)
    right, different = int((by_setting > 0).sum()), int((by_setting != 0).sum())
    return different > 0 and float(stats.binomtest(right, different, 0.5, alternative="greater").pvalue) < MAX_P


def _columns(feature: Feature) -> Iterator[_Column]:
    """Yield whether it is a level; of numbers their place among all, because trees use 32-bit floats."""
    if not feature.numeric:
        for place, level in enumerate(feature.levels):
            yield feature.name, level, (feature.values == place).astype(np.float64), ()
        return
    missing = np.isnan(feature.values)
    different = np.unique(feature.values[~missing])
    limits = middles_of(different[:-1], different[1:], positive=bool((different > 0).all()))
    yield feature.name, "", np.where(missing, -1.0, np.searchsorted(different, feature.values)), limits.tolist()


def _leaves(
    tree: DecisionTreeClassifier,
    columns: Sequence[_Column],
    table: NDArray[np.float64],
    outcome: NDArray[np.bool_],
) -> Iterator[tuple[float, str]]:
    """Yield for each leaf its share of unstable runs, and its rule."""
    nodes = tree.tree_
    leaf_of = tree.apply(table)
    stack: list[tuple[int, list[tuple[int, float, bool]]]] = [(0, [])]
    while stack:
        node, path = stack.pop()
        if nodes.children_left[node] == -1:
            inside = outcome[leaf_of == node]
            conditions = " and ".join(_conditions(path, columns)) or "all runs"
            yield float(inside.mean()), f"{conditions}: {int(inside.sum())} of {len(inside)} runs unstable"
            continue
        column, limit = int(nodes.feature[node]), float(nodes.threshold[node])
        stack.append((int(nodes.children_left[node]), [*path, (column, limit, False)]))
        stack.append((int(nodes.children_right[node]), [*path, (column, limit, True)]))


def _conditions(path: Sequence[tuple[int, float, bool]], columns: Sequence[_Column]) -> Iterator[str]:
    """Yield the conditions of a path, one for each column: the narrowest limits of a number."""
    for column in dict.fromkeys(column for column, _, _ in path):
        name, level, _, limits = columns[column]
        above = [limit for other, limit, is_above in path if other == column and is_above]
        below = [limit for other, limit, is_above in path if other == column and not is_above]
        if level:
            yield f"{name} {level}" if above else f"{name} not {level}"
        elif below and min(below) < 0:
            yield f"{name} {NOT_SET}"
        else:
            least = max(above, default=-1.0)
            parts = [f"> {limits[int(least)]:.3g}"] if least >= 0 else ["set"] if above and not below else []
            parts += [f"≤ {limits[int(min(below))]:.3g}"] if below else []
            yield f"{name} {' and '.join(parts)}"
