"""Compares runs: which are unstable, since when, and what they have in common.

In: run ids and paths, or an experiment. Out: a `Comparison`. Guarantees: a run that cannot be read is reported and the
others go on; runs that are over are judged once and remembered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from mlflow_stability.analysis.asked_for import asked_for, names_a_source, source_text, source_texts
from mlflow_stability.analysis.cards import HowToRead, MadeCards, Progress, make_cards, run_meant
from mlflow_stability.analysis.diagnose import asked_curves
from mlflow_stability.analysis.named_run import run_called
from mlflow_stability.analysis.pair import Pair, pair_of
from mlflow_stability.analysis.run_folder import run_folder
from mlflow_stability.analysis.thresholds import asked_detectors
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import RunNotFoundError, SettingsError, StabilityError
from mlflow_stability.reports import notebook  # noqa: F401 - notebooks show what is returned here as a page
from mlflow_stability.tracking.in_process import without_autologging
from mlflow_stability.vocabulary.argument import check_arguments, short_repr
from mlflow_stability.vocabulary.result import AskedCurves, Comparison, RunCard
from mlflow_stability.vocabulary.run import RunHead

MOST_RUNS = 1000
"""Of an experiment, unless more are asked for: comparing so many takes minutes."""


class NoneReadError(RunNotFoundError):
    """Not one of the runs could be read."""

    def __init__(self, comparison: Comparison) -> None:
        several = f"None of the {len(comparison.unread)} runs could be read. " if len(comparison.unread) > 1 else ""
        super().__init__(f"{several}{comparison.unread[0].error}")
        self.comparison = comparison
        """With the reason for each of them, for those who show it."""

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
    asked = asked_detectors(detectors, sensitivity)
    baseline = None if baseline is None else source_text(baseline, "baseline")
    curves = asked_curves(loss, val_loss)
    sources = _different(_in_full(each, tracking_uri) for each in source_texts(run_ids, "run_ids"))
    heads, notes = _asked(sources, experiment, filter, tracking_uri, max_runs)
    sources += heads
    if baseline is not None:
        baseline = _baseline_in_full(baseline, sources, tracking_uri)
    if baseline is not None and names_a_source(baseline) and run_meant(baseline) not in map(run_meant, sources):
        sources.append(baseline)
    if not sources:
        where = (
            "" if experiment is None else f" Experiment {experiment!r} has none{' that meets it' if filter else ''}."
        )
        raise SettingsError(f"No runs to compare.{where}")
    try:
        heads = {**_heads(sources, heads, tracking_uri), **heads} if remember else {}
        made = make_cards(sources, heads, HowToRead(tracking_uri, asked, dask, remember, curves), progress)
    except KeyboardInterrupt:  # before a single one was read
        made = MadeCards((), interrupted=True)
    found = _concluded(made, len(sources), baseline, tracking_uri, curves, notes)
    if found.unread and not found.cards and not found.interrupted:
        raise NoneReadError(found)
    return found


def _different(asked: Iterable[str]) -> list[str]:
    """Each run once, as it was called first."""
    found: dict[str, str] = {}
    for each in asked:
        found.setdefault(run_meant(each), each)
    return list(found.values())


def _concluded(
    made: MadeCards,
    asked: int,
    baseline: str | None,
    tracking_uri: str | None,
    curves: AskedCurves,
    notes: Sequence[str] = (),
) -> Comparison:
    from mlflow_stability.diagnosis.cohort import in_order_of_stability
    from mlflow_stability.diagnosis.compare import comparison_of

    chosen = _baseline(made, baseline) if baseline is not None else None
    readable = in_order_of_stability(card for card in made.cards if card.readable)
    unread = ("Interrupted: the baseline was not read yet.",) if baseline is not None and chosen is None else ()
    interrupted = made.interrupted
    try:
        pair = Pair() if interrupted else pair_of(readable, tracking_uri, curves)
    except KeyboardInterrupt:
        pair, interrupted = Pair(lacking=("Interrupted: the two runs were not compared step by step.",)), True
    with without_autologging():
        return comparison_of(
            made.cards,
            baseline=chosen,
            first_difference=pair.first_difference,
            layers=pair.layers,
            asked=max(asked, len(made.cards)),
            interrupted=interrupted,
            notes=(*notes, *unread, *pair.lacking),
        )


def _asked(
    sources: Sequence[str], experiment: str | None, condition: str | None, tracking_uri: str | None, most: int
) -> tuple[dict[str, RunHead], tuple[str, ...]]:
    """The runs of the experiment that was asked for, by their ids; and whether there are more."""
    if not isinstance(most, int) or most < 1:
        raise SettingsError(f"max_runs must be a whole number of at least 1; got {short_repr(most)}.")
    if experiment is None:
        if condition:
            raise SettingsError("filter needs an experiment: give its name or id.")
        return {}, ()
    if sources:
        raise SettingsError("Give run ids or an experiment, not both.")
    from mlflow_stability.tracking.read.run_search import runs_of_experiment

    found = runs_of_experiment(experiment, condition or "", tracking_uri, most + 1)
    heads = {head.run_id: head for head in found[:most]}
    if len(found) <= most:
        return heads, ()
    note = (
        f"Older runs of experiment {experiment!r}: the newest {most:,} were compared. Raise --max-runs (max_runs=), or "
        "choose runs with --filter (filter=)."
    )
    return heads, (note,)


def _heads(sources: Sequence[str], known: dict[str, RunHead], tracking_uri: str | None) -> dict[str, RunHead]:
    """What the store says of runs that were asked for by id; of what it does not have, reading them says more."""
    ids = [each for each in sources if each not in known and _is_stored(each, tracking_uri)]
    if not ids:
        return {}
    from mlflow_stability.tracking.read.run_search import head_by
    from mlflow_stability.tracking.store.client import answering_client

    found: dict[str, RunHead] = {}
    try:
        client = answering_client(tracking_uri)
    except StabilityError:
        if len(ids) == len(sources):
            raise
        return found  # there are logs beside its runs
    for each in ids:
        try:
            found[each] = head_by(client, each)
        except RunNotFoundError:
            continue
        except StabilityError:
            if not _answers(tracking_uri):
                return found  # MLflow would try for minutes, with each of them
    return found


def _answers(tracking_uri: str | None) -> bool:
    """Whether the store is still there; within seconds."""
    from mlflow_stability.tracking.store.client import answering_client

    try:
        answering_client(tracking_uri)
    except StabilityError:
        return False
    return True


def _is_stored(source: str, tracking_uri: str | None) -> bool:
    """Whether it is a run of a database or a server; a folder is read as fast as it would be remembered."""
    try:
        return not asked_for(source, tracking_uri).is_path and run_folder(source, tracking_uri) is None
    except StabilityError:
        return False


def _in_full(source: str, tracking_uri: str | None) -> str:
    """The whole id of a run that was asked for by less; what cannot be found is told where it is read."""
    try:
        return asked_for(source, tracking_uri).source
    except StabilityError:
        return source


def _baseline_in_full(asked: str, sources: Sequence[str], tracking_uri: str | None) -> str:
    """Likewise; else it is the name of one of the runs."""
    if names_a_source(asked) or all(map(os.path.lexists, sources)):
        return asked
    try:
        return run_called(asked, tracking_uri) or asked
    except StabilityError:
        return asked


def _baseline(made: MadeCards, asked: str) -> RunCard | None:
    meant = run_meant(asked)
    found = [card for card in made.cards if run_meant(card.source) == meant]
    found = found or [card for card in made.cards if card.name == asked]
    if found and found[0].error:
        raise SettingsError(f"The baseline could not be read: {found[0].error}")
    if len(found) > 1:
        raise SettingsError(f"{len(found)} of the runs are named {asked!r}; give the id of the one to compare with.")
    if not found and not made.interrupted:
        raise SettingsError(f"The baseline {asked!r} is not one of the runs.")
    return found[0] if found else None
