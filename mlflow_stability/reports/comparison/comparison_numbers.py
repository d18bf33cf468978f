"""The second table of a comparison: for each run the numbers that most people look at after the outcome.

In: cards. Out: columns, and words for their cells. Guarantees: terminal, Markdown and page show the same; a column that
has not a single number, or tells nothing, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.vocabulary.result import RunCard

TITLE = "Spikes, losses and speed"
RUNS_TITLE = "Runs, most stable first"
HEAD = ("run", "outcome", "first issue", "spikes per 10k steps", "recovered", "final", "best", "lost steps", "verdict")
"""Columns of the first table; a page has the findings in place of the verdict."""


def _steps(card: RunCard) -> str:
    ended = {"running": " so far", "stopped": " stopped"}.get(card.ended, "")
    return f"{card.steps:,}{ended}" if card.steps else wording.NOTHING


def _first_spike(card: RunCard) -> str:
    return wording.steps(min(card.spike_steps, default=None))


def _lost_at(card: RunCard) -> str:
    return wording.steps(card.divergence)


def _score(card: RunCard) -> str:
    return wording.share(card.spike_score)


def _recovered(card: RunCard) -> str:
    times = card.recovery_steps
    return f"{len(times)}/{len(card.troubles)} in {max(times):,}" if times else wording.NOTHING


def _rolled_back(card: RunCard) -> str:
    return f"{card.rolled_back:,}" if card.rolled_back else wording.NOTHING


def _skipped(card: RunCard) -> str:
    return f"{card.skipped:,}" if card.skipped else wording.NOTHING


@dataclass(frozen=True, slots=True)
class Column:
    """One number of each run."""

    title: str
    say: Callable[[RunCard], str]
    meaning: str = ""
    """What the title leaves open."""


STEPS = Column("steps", _steps, "length of the run")
NUMBERS = (
    Column("1st spike", _first_spike, "the step of the first loss spike"),
    Column("spike score", _score, "the share of losses 7 sigma or more from the mean of the last 1,000"),
    Column("lost at", _lost_at, "the step from which the loss never recovered"),
    Column("recovered", _recovered, "of how many episodes, within how many steps at most"),
    Column("rolled back", _rolled_back, "steps rolled back"),
    Column("skipped", _skipped, "steps without an update"),
    Column("speed", wording.speed, "steps per second"),
    Column("overhead", lambda card: wording.share(card.overhead), "share of the time that recording took"),
)


def columns_of(cards: Sequence[RunCard]) -> list[Column]:
    """Those in which any of these runs has something; how long they are, where that is not the same of all."""
    steps = [STEPS] if len({STEPS.say(card) for card in cards}) > 1 else []
    return [*steps, *(each for each in NUMBERS if any(each.say(card) != wording.NOTHING for card in cards))]


def meanings(columns: Sequence[Column]) -> str:
    """What the titles say: ``lost at: the step from which the loss never recovered; ...``."""
    return "; ".join(f"{each.title}: {each.meaning}" for each in columns) + "."
