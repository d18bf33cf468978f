"""Phrases about the layers of two runs, for every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.vocabulary.measured import LayerComparison

TITLES = {
    "grad_norm": "Gradient norm by layer",
    "update_ratio": "Update ratio by layer",
    "param_norm": "Parameter norm by layer",
    "attention_entropy": "Attention entropy by head",
}
SECTION = "Layers compared"


def title(beside: LayerComparison) -> str:
    """``Gradient norm by layer``."""
    return TITLES.get(beside.quantity, beside.quantity)


def measure(beside: LayerComparison) -> str:
    """What colours show: ``gradient norm``."""
    return title(beside).partition(" by ")[0].lower()


def sentences(beside: LayerComparison, names: tuple[str, str]) -> str:
    """Where the two are farthest apart, and where one was not finite."""
    return " ".join([*_farthest(beside, names), *_broken(beside, names)])


def columns(beside: LayerComparison) -> str:
    """What a cell holds: ``each column the largest of 10 steps``."""
    extreme = "smallest" if beside.smallest else "largest"
    return f"each column the {extreme} of {beside.width:,} steps" if beside.width > 1 else "a column for each step"


def _farthest(beside: LayerComparison, names: tuple[str, str]) -> Iterator[str]:
    found = beside.farthest
    if found is None and beside.absent[0] | beside.absent[1] == set(beside.layers):
        yield f"The runs have no {beside.row} in common."
        return
    if found is None:
        yield f"No {beside.row} has values of both runs at the same step."
        return
    if found.first == found.second:
        yield f"Identical in every {beside.row} where both were measured."
        return
    low, high = sorted((found.first, found.second))
    times = f" ({number_text(high / low)} times)" if low > 0 and not beside.smallest else ""
    where = f"Largest difference in {beside.row} {found.layer} {_at(beside, found.offset, beside.spans)}"
    yield f"{where}: {number_text(found.first)} in {names[0]}, {number_text(found.second)} in {names[1]}{times}."


def _broken(beside: LayerComparison, names: tuple[str, str]) -> Iterator[str]:
    for found, name, span in zip(beside.broken, names, beside.spans, strict=True):
        if found is not None:
            many = f"{found.layers} {beside.row}s of {name}, first in" if found.layers > 1 else f"{name}, in"
            yield f"Not finite in {many} {found.layer} {_at(beside, found.offset, [span])}."


def _at(beside: LayerComparison, offset: int, spans: Sequence[tuple[int, int]]) -> str:
    """``at step 120``, ``40 to 49 steps after the onset``: of a column as far as these runs reach into it."""
    first, last = beside.steps_within(offset, spans)
    if not beside.aligned:
        return f"at step {first:,}" if last == first else f"within steps {first:,} to {last:,}"
    if first <= 0 <= last:
        return "at the onset" if last == 0 else f"in the first {last + 1:,} steps from the onset"
    near, far = sorted((abs(first), abs(last)))
    steps = f"{near:,} step{'s' if near != 1 else ''}" if near == far else f"{near:,} to {far:,} steps"
    return f"{steps} {'after' if first > 0 else 'before'} the onset"
