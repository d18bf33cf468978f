"""Compare runs: which are unstable, since when, and what they have in common.

A run that cannot be read is reported and the others go on; finished runs are judged once and cached. Two runs are also
compared step by step and layer by layer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mlflow_stability.analysis.cards import HowToRead, MadeCards, Progress, make_cards, run_meant
from mlflow_stability.analysis.diagnose import asked_curves, asked_detectors, history_of
from mlflow_stability.analysis.source import (
    names_a_source,
    resolve_source,
    run_called,
    run_folder,
    runs_among,
    source_text,
    source_texts,
)
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.two_runs import (
    BY_LAYER,
    LayerCourse,
    StepColumns,
    lacking,
    layer_courses,
    layers_beside,
    step_columns_of,
)
from mlflow_stability.errors import RunNotFoundError, SettingsError, StabilityError
from mlflow_stability.reports import report_format  # noqa: F401 - notebooks show what is returned here as a page
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.argument import check_arguments, short_repr
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.result import AskedCurves, Comparison, FirstDifference, RunCard
from mlflow_stability.vocabulary.run import RunHead, RunHistory

MOST_RUNS = 1000  # of an experiment, unless more are asked for: comparing this number takes minutes


class NoneReadError(RunNotFoundError):
    def __init__(self, comparison: Comparison) -> None:
        several = f"None of the {len(comparison.unread)} runs could be read. " if len(comparison.unread) > 1 else ""
        super().__init__(f"{several}{comparison.unread[0].error}")
        self.comparison = comparison  # with the reason for each of them, for those who show it

    def __reduce__(self) -> tuple[type[NoneReadError], tuple[Comparison]]:
        return type(self), (self.comparison,)


@check_arguments
def compare(
    run_ids: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    experiment: str | None = None,
    filter: str | None = None,  # noqa: A002 - what MLflow's own functions and commands call it
    max_runs: int = MOST_RUNS,
    baseline: str | os.PathLike[str] | None = None,
    tracking_uri: str | None = None,
    loss: str | None = None,
    val_loss: str | None = None,
    detectors: Iterable[Detector | str] | None = None,
    sensitivity: str = "normal",
    dask: str | None = None,
    remember: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Which of these runs are unstable, since when, and what they have in common.

    Ctrl-C gives what is done so far, with ``interrupted=True``.

    Args:
        run_ids: Ids or names of MLflow runs, anybody's, and paths of training logs.
        experiment: Compare all runs of this experiment (its name or id) instead.
        filter: Only those that meet a condition in MLflow's syntax: ``"params.lr = '0.1'"``.
        max_runs: Of more such runs the newest are compared, and the comparison says so.
        baseline: The run that all others must not be worse than.
        tracking_uri: The server of the runs, if it is not ``MLFLOW_TRACKING_URI``.
        loss: The metric to judge, where the choice made here is not what is wanted; every run must have it.
        val_loss: The same of the validation loss.
        detectors: Those that judge, as ``autolog(detectors=...)`` takes them.
        sensitivity: "low", "normal" or "high": moves all thresholds but your own.
        dask: The address of a cluster that does the reading.
        remember: Keep cards of finished runs in the user's cache folder.
        progress: Called with how many runs are done, how many there are, and how many failed.

    Returns:
        The runs in order of stability, and what is associated with instability.

    Raises:
        SettingsError: A value that does not fit, or nothing to compare.
        RunNotFoundError: Not one of the runs could be read.
        TrackingError: The server cannot be reached.

    Example:

        >>> comparison = compare(["mlruns_fixtures/0/loss_spike", "mlruns_fixtures/0/healthy"], remember=False)
        >>> comparison.summary
        '2 runs: 1 unstable, 1 stable.'
    """
    judges = asked_detectors(detectors, sensitivity)
    baseline = None if baseline is None else source_text(baseline, "baseline")
    curves = asked_curves(loss, val_loss)
    asked: dict[str, str] = {}  # each run once, as it was called first
    for text in runs_among(source_texts(run_ids, "run_ids")):
        source = text
        with suppress(StabilityError):  # what is not found is reported where it is read
            source = resolve_source(text, tracking_uri).source
        asked.setdefault(run_meant(source), source)
    heads, notes = _experiment_runs(asked, experiment, filter, tracking_uri, max_runs)
    sources = [*asked.values(), *heads]
    if baseline is not None:
        if not names_a_source(baseline) and not all(map(os.path.lexists, sources)):
            with suppress(StabilityError):  # else it may be the name of one of the runs
                baseline = run_called(baseline, tracking_uri) or baseline
        if names_a_source(baseline) and run_meant(baseline) not in map(run_meant, sources):
            sources.append(baseline)
    if not sources:
        condition = " that meets it" if filter else ""
        where = "" if experiment is None else f" Experiment {experiment!r} has none{condition}."
        raise SettingsError(f"No runs to compare.{where}")
    try:
        heads = {**_heads(sources, heads, tracking_uri), **heads} if remember else {}
        made = make_cards(sources, heads, HowToRead(tracking_uri, judges, dask, remember, curves), progress)
    except KeyboardInterrupt:  # before a single one was read
        made = MadeCards((), interrupted=True)
    comparison = _compare(made, len(sources), baseline, tracking_uri, curves, notes)
    if comparison.unread and not comparison.cards and not comparison.interrupted:
        raise NoneReadError(comparison)
    return comparison


def _experiment_runs(
    asked: Collection[str], experiment: str | None, condition: str | None, tracking_uri: str | None, max_runs: int
) -> tuple[dict[str, RunHead], tuple[str, ...]]:
    """Return the runs of the experiment that was asked for, by their ids, and a note if there are more."""
    if not isinstance(max_runs, int) or max_runs < 1:
        raise SettingsError(f"max_runs must be a whole number of at least 1; got {short_repr(max_runs)}.")
    if experiment is None:
        if condition:
            raise SettingsError("filter needs an experiment: give its name or id.")
        return {}, ()
    if asked:
        raise SettingsError("Give run ids or an experiment, not both.")
    from mlflow_stability.tracking.read.run_search import runs_of_experiment

    runs = runs_of_experiment(experiment, condition or "", tracking_uri, max_runs + 1)
    heads = {head.run_id: head for head in runs[:max_runs]}
    if len(runs) <= max_runs:
        return heads, ()
    note = (
        f"Older runs of experiment {experiment!r}: the newest {max_runs:,} were compared. Raise --max-runs "
        "(max_runs=), or choose runs with --filter (filter=)."
    )
    return heads, (note,)


def _heads(sources: Sequence[str], experiment: dict[str, RunHead], tracking_uri: str | None) -> dict[str, RunHead]:
    """Return what the store says of runs by id; what it does not have is reported where it is read."""
    run_ids = [source for source in sources if source not in experiment and _is_stored(source, tracking_uri)]
    if not run_ids:
        return {}
    from mlflow_stability.tracking.client import answering_client
    from mlflow_stability.tracking.read.run_search import head_by

    heads: dict[str, RunHead] = {}
    try:
        client = answering_client(tracking_uri)
    except StabilityError:
        if len(run_ids) == len(sources):
            raise
        return heads  # there are logs beside its runs
    for run_id in run_ids:
        try:
            heads[run_id] = head_by(client, run_id)
        except RunNotFoundError:
            continue
        except StabilityError:
            try:
                answering_client(tracking_uri)
            except StabilityError:
                return heads  # the store is gone, and MLflow would try for minutes with each run
    return heads


def _is_stored(source: str, tracking_uri: str | None) -> bool:
    """Whether it is a run of a database or a server; a folder is read as fast as its card would be from the cache."""
    try:
        return not resolve_source(source, tracking_uri).is_path and run_folder(source, tracking_uri) is None
    except StabilityError:
        return False


def _compare(
    made: MadeCards,
    asked: int,
    baseline: str | None,
    tracking_uri: str | None,
    curves: AskedCurves,
    notes: Sequence[str],
) -> Comparison:
    from mlflow_stability.diagnosis.compare import comparison_of, in_order_of_stability

    card = _baseline_card(made, baseline) if baseline is not None else None
    unread = ("Interrupted: the baseline was not read yet.",) if baseline is not None and card is None else ()
    readable = in_order_of_stability(card for card in made.cards if card.readable)
    interrupted = made.interrupted
    try:
        pair = Pair() if interrupted else pair_of(readable, tracking_uri, curves)
    except KeyboardInterrupt:
        pair, interrupted = Pair(lacking=("Interrupted: the two runs were not compared step by step.",)), True
    return comparison_of(
        made.cards,
        baseline=card,
        first_difference=pair.first_difference,
        layers=pair.layers,
        asked=max(asked, len(made.cards)),
        interrupted=interrupted,
        notes=(*notes, *unread, *pair.lacking),
    )


def _baseline_card(made: MadeCards, baseline: str) -> RunCard | None:
    cards = [card for card in made.cards if run_meant(card.source) == run_meant(baseline)]
    cards = cards or [card for card in made.cards if card.name == baseline]
    if cards and cards[0].error:
        raise SettingsError(f"The baseline could not be read: {cards[0].error}")
    if len(cards) > 1:
        raise SettingsError(f"{len(cards)} of the runs are named {baseline!r}; give the id of the one to compare with.")
    if not cards and not made.interrupted:
        raise SettingsError(f"The baseline {baseline!r} is not one of the runs.")
    return cards[0] if cards else None


@dataclass(frozen=True, slots=True)
class Pair:
    first_difference: FirstDifference | None = None
    layers: tuple[LayerComparison, ...] = ()
    lacking: tuple[str, ...] = ()  # what could not be compared, and why


def pair_of(cards: Sequence[RunCard], tracking_uri: str | None = None, curves: AskedCurves | None = None) -> Pair:
    """Compare two runs step by step and by layer; nothing for any other number of runs.

    The runs are read one after the other, and of each only its curves and a few hundred columns by layer are kept.
    """
    if len(cards) != 2 or not all(card.readable for card in cards):
        return Pair()
    from mlflow_stability.diagnosis.two_runs import first_difference_of

    first, second = cards
    columns = step_columns_of(first, second)
    try:
        history, courses = _read(first, tracking_uri, None if columns is None else columns[0], curves)
        other, other_courses = _read(second, tracking_uri, None if columns is None else columns[1], curves)
        first_difference = first_difference_of(history, other)
        if columns is None:
            return Pair(first_difference)
        names = (first.name or first.source, second.name or second.source)
        layers = layers_beside(courses, other_courses, columns, (first, second))
        return Pair(first_difference, layers, tuple(lacking(courses, other_courses, names)))
    except StabilityError as error:  # one was deleted meanwhile, or is one of several runs in a file
        return Pair(lacking=(f"The two runs could not be compared step by step: {error}",))
    except Exception as error:  # a mistake of ours must not cost the rest of the comparison
        what = f"unexpected {type(error).__name__}, {error}"
        return Pair(lacking=(f"The two runs could not be compared step by step: {what}. Please report it.",))


def _read(
    card: RunCard, tracking_uri: str | None, columns: StepColumns | None, curves: AskedCurves | None
) -> tuple[RunHistory, Mapping[str, LayerCourse]]:
    """Read the run without its metrics by layer, and these in columns."""
    history = history_of(card.source, tracking_uri, curves)
    courses = {} if columns is None else layer_courses(history, columns, _is_layer)
    kept = (m for m in history.metrics if m.meaning.quantity not in BY_LAYER or not _is_layer(m.meaning.place))
    return replace(history, metrics=tuple(kept)), courses


def _is_layer(place: str) -> bool:
    return place != "" and not is_group(place)
