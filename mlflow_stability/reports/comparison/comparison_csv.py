"""Writes a comparison as a table for spreadsheets and scripts: one row for each run.

In: a `Comparison`. Out: CSV with a header line, the stablest run first, those that could not be read last; behind the
fixed columns one for each parameter that differs. Guarantees: no cell is a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from mlflow_stability.reports.escape import csv_cell
from mlflow_stability.vocabulary.result import Compared, Comparison, Difference, RunCard

COLUMNS = (
    "rank",
    "source",
    "name",
    "outcome",
    "severity",
    "verdict",
    "cause",
    "first_step",
    "last_step",
    "onset",
    "divergence",
    "episodes",
    "spikes",
    "spikes_per_10k",
    "spikes_low",
    "spikes_high",
    "first_spike",
    "spike_score",
    "recovery_steps",
    "rolled_back",
    "skipped",
    "loss_metric",
    "first_loss",
    "final_loss",
    "best_loss",
    "steps_per_second",
    "overhead",
    "worse_than_baseline",
    "error",
)


def render(comparison: Comparison) -> str:
    """The table as text."""
    params = [each for each in comparison.differences if not each.is_tag]
    verdicts = {each.source: not each.passed for each in comparison.gate.verdicts} if comparison.gate else {}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*COLUMNS, *(csv_cell(f"param:{each.name}") for each in params)])
    for rank, each in enumerate(comparison.runs):
        worse = verdicts.get(each.card.source)
        table.writerow([*_cells(rank + 1, each, worse), *_values(params, rank)])
    for card in comparison.unread:
        table.writerow([*_unread(card, verdicts.get(card.source)), *("" for _ in params)])
    return text.getvalue()


def _cells(rank: int, each: Compared, worse: bool | None) -> Iterator[str | int]:
    card, rate = each.card, each.spike_rate
    yield rank
    yield csv_cell(card.source)
    yield csv_cell(card.name)
    yield card.outcome
    yield card.severity.name
    yield csv_cell(card.verdict)
    yield csv_cell(card.cause)
    yield from (_whole(step) for step in (card.first_step, card.last_step, card.onset, card.divergence))
    yield len(card.troubles)
    yield len(card.spike_steps)
    yield from (("", "", "") if rate is None else (_exact(rate.per_10k), _exact(rate.low), _exact(rate.high)))
    yield _whole(min(card.spike_steps, default=None))
    yield _exact(card.spike_score)
    yield "; ".join(map(str, card.recovery_steps))
    yield card.rolled_back
    yield card.skipped
    yield csv_cell(card.loss)
    yield from (_exact(value) for value in (card.first_loss, card.final_loss, card.best_loss))
    yield _exact(card.steps_per_second)
    yield _exact(card.overhead)
    yield _truth(worse)
    yield ""


def _unread(card: RunCard, worse: bool | None) -> list[str]:
    known = {
        "source": csv_cell(card.source),
        "name": csv_cell(card.name),
        "worse_than_baseline": _truth(worse),
        "error": csv_cell(card.error),
    }
    return [known.get(column, "") for column in COLUMNS]


def _values(params: list[Difference], rank: int) -> Iterator[str]:
    for each in params:
        value = each.values[rank]
        yield "" if value is None else _param(value)


def _param(value: str) -> str:
    """A number as it is, so that ``-1`` stays one; anything else made harmless."""
    try:
        float(value)
    except ValueError:
        return csv_cell(value)
    return value


def _whole(value: int | None) -> str | int:
    return "" if value is None else value


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _truth(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
