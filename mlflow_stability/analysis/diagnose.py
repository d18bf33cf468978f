"""Diagnose a run, wherever it was recorded, or any numbers, or condense a run to a card.

A path needs no server and loads neither MLflow nor torch; a run loads no reader of files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.analysis.source import (
    ResolvedSource,
    from_full_record,
    last_runs,
    resolve_source,
    run_folder,
    runs_among,
    source_texts,
)
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.diagnosis.advice import remedies_of
from mlflow_stability.diagnosis.causes.causes import explainable
from mlflow_stability.diagnosis.verdict import deciding_of, listed, outcome_of, verdict_of
from mlflow_stability.errors import SettingsError, StabilityError
from mlflow_stability.kinds.catalog import choose_detectors, default_detectors, noun_of, read_detectors
from mlflow_stability.reports import report_format  # noqa: F401 - notebooks show what is returned here as a page
from mlflow_stability.reports.report import Failure
from mlflow_stability.tracking.in_process import latest_run
from mlflow_stability.vocabulary.argument import check_arguments
from mlflow_stability.vocabulary.measured.signal import Series, Signal
from mlflow_stability.vocabulary.result import AskedCurves, Diagnosis, RunCard, Severity, card_to_json
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.settings import ACCEPTS
from mlflow_stability.vocabulary.text.metric_names import metric_meanings


@check_arguments
def diagnose(
    run_id_or_path: str | os.PathLike[str] | None = None,
    tracking_uri: str | None = None,
    *,
    loss: str | None = None,
    val_loss: str | None = None,
    detectors: Iterable[Detector | str] | None = None,
    sensitivity: str = "normal",
) -> Diagnosis:
    """What went wrong in a run, why, and what to change.

    A notebook shows the result as the HTML report.

    Args:
        run_id_or_path: The id or name of an MLflow run, or the path of a training log or of a run's folder in
            ``mlruns``; what exists as a path is taken as one. Default: the run that this process recorded last, and
            what is still on its way to it is waited for; where it has recorded none, the run of the store that was
            started last.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.
        loss: The metric to judge, where the choice made here is not what is wanted.
        val_loss: The same of the validation loss.
        detectors: Those that judge, as ``autolog(detectors=...)`` takes them, also what was judged while it trained.
        sensitivity: "low", "normal" or "high": moves all thresholds but your own.

    Returns:
        The verdict, with findings, causes and remedies.

    Raises:
        RunNotFoundError: There is no such run.
        UnreadableLogError: The path cannot be read as a log.
        TrackingError: The server cannot be reached.
        SettingsError: A value that does not fit, or a path that holds several runs: ``diagnose_all`` takes those.

    Example:

        >>> from mlflow_stability.kinds import LossSpike
        >>> diagnosis = diagnose("mlruns_fixtures/0/loss_spike", detectors=["divergence", LossSpike(threshold=10)])
        >>> [(episode.kind, episode.start) for episode in diagnosis.findings]
        [('loss_spike', 400)]
    """
    asked = asked_detectors(detectors, sensitivity)
    curves = asked_curves(loss, val_loss)
    if run_id_or_path is not None:
        return concluded(history_of(run_id_or_path, tracking_uri, curves), asked)
    latest = latest_run()
    if latest is None:
        return concluded(history_of(last_runs(1, tracking_uri)[0], tracking_uri, curves), asked)
    diagnosis = concluded(history_of(latest.run_id, tracking_uri or latest.tracking_uri, curves), asked)
    if not latest.missing:
        return diagnosis
    note = f"Not everything recorded has arrived in the run yet ({latest.missing}); ask again later for all of it."
    return replace(diagnosis, notes=(*diagnosis.notes, note))


@check_arguments
def diagnose_all(
    run_ids_and_paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    tracking_uri: str | None = None,
    *,
    loss: str | None = None,
    val_loss: str | None = None,
    detectors: Iterable[Detector | str] | None = None,
    sensitivity: str = "normal",
) -> Iterator[Diagnosis | Failure]:
    """The same for many, each as soon as it is known; folders give all the runs in them.

    Args:
        run_ids_and_paths: Each is what ``diagnose`` takes, or a folder of logs or runs.
        tracking_uri: As for ``diagnose``.
        loss: As for ``diagnose``.
        val_loss: As for ``diagnose``.
        detectors: As for ``diagnose``.
        sensitivity: As for ``diagnose``.

    Returns:
        An iterator. What cannot be read is a `Failure` in its place, and the others go on.

    Raises:
        SettingsError: A value that does not fit.

    Example:

        >>> [type(found).__name__ for found in diagnose_all(["mlruns_fixtures/0/healthy", "nothing.csv"])]
        ['Diagnosis', 'Failure']
    """
    curves = asked_curves(loss, val_loss)
    judges = asked_detectors(detectors, sensitivity)
    for source in runs_among(source_texts(run_ids_and_paths, "run_ids_and_paths")):
        is_path = True
        try:
            asked = resolve_source(source, tracking_uri)
            is_path = asked.is_path
            histories = histories_of(asked, tracking_uri)
        except StabilityError as error:
            yield Failure(source, str(error), is_path)
            continue
        for history in histories:
            try:
                yield concluded(in_place(history, curves), judges)
            except StabilityError as error:
                yield Failure(history.source, str(error), is_path)
            except Exception as error:  # a mistake of ours about one run must not stop the others
                what = f"unexpected {type(error).__name__}, {error}"
                reason = f"{history.source} could not be judged: {what}. Please report it."
                yield Failure(history.source, reason, is_path)


def asked_curves(loss: str | None, val_loss: str | None) -> AskedCurves:
    """Return the names of the curves to judge; raise ``SettingsError`` for anything but names."""
    for argument, name in (("loss", loss), ("val_loss", val_loss)):
        if name is not None and (not isinstance(name, str) or not name):
            raise SettingsError(f"{argument} must be the name of a metric; got {name!r}.")
    return AskedCurves(loss or "", val_loss or "")


def asked_detectors(detectors: Iterable[Detector | str] | None, sensitivity: str) -> Sequence[Detector] | None:
    """Return the detectors that judge; None for the default ones.

    Names in `detectors` follow the sensitivity, and objects stay as they are.
    """
    sensitivity = ACCEPTS["sensitivity"].check("sensitivity", sensitivity)
    if detectors is None:
        return None if sensitivity == "normal" else at_sensitivity(default_detectors(), sensitivity)
    checked = ACCEPTS["detectors"].check("detectors", detectors)
    if sensitivity != "normal" and not any(isinstance(detector, str) for detector in checked):
        raise SettingsError("Give detectors= or sensitivity=, not both: each sets the thresholds.")
    return choose_detectors(checked, sensitivity)


def history_of(
    run_id_or_path: str | os.PathLike[str], tracking_uri: str | None = None, curves: AskedCurves | None = None
) -> RunHistory:
    """Read one run, with its main curves in place."""
    histories = histories_of(resolve_source(run_id_or_path, tracking_uri), tracking_uri)
    if len(histories) > 1:
        names = ", ".join(history.name for history in histories[:3])
        more = ", ..." if len(histories) > 3 else ""
        raise SettingsError(
            f"{os.fspath(run_id_or_path)} holds {len(histories)} runs ({names}{more}). Name one of them; "
            "`mlflow-stability diagnose` and mlflow_stability.diagnose_all() take them all."
        )
    return in_place(histories[0], curves)


def histories_of(asked: ResolvedSource, tracking_uri: str | None = None) -> list[RunHistory]:
    """Read each run there; at least one."""
    path = asked.path or run_folder(asked.source, tracking_uri)
    if path is not None:
        from mlflow_stability.importers.open_log import read

        histories = map(from_full_record, read(path))
        if asked.path is None:
            return [replace(history, source=asked.source) for history in histories]
        return [replace(history, source=as_typed(history.source, asked.source, path)) for history in histories]
    from mlflow_stability.tracking.read.run_reader import read_run_history

    return [read_run_history(asked.source, tracking_uri)]


def as_typed(source: str, typed: str, place: str | os.PathLike[str]) -> str:
    """Return the source in this place beginning as the place was typed: ``./logs/a.csv`` for a log in ``./logs``."""
    within = os.path.relpath(source, place)
    if within.startswith(os.pardir):
        return source
    return typed if within == os.curdir else os.path.join(typed, within)  # noqa: PTH118


def in_place(history: RunHistory, curves: AskedCurves | None = None) -> RunHistory:
    """Return the history with the curves to judge in place: those asked for, else those most like its losses."""
    from mlflow_stability.curves.main_curves import with_main_curves

    return with_main_curves(history, curves)


def concluded(history: RunHistory, detectors: Sequence[Detector] | None) -> Diagnosis:
    """Diagnose a history; other detectors than the default ones judge again what was judged during training."""
    from mlflow_stability.diagnosis.diagnose import diagnosis_of

    if detectors is not None and history.events is not None and history.complete:
        note = "Detected again, with other detectors than during training."
        history = replace(history, events=None, notes=(*history.notes, note))
    return diagnosis_of(history, detectors=detectors)


def cards_at(
    source: str,
    tracking_uri: str | None = None,
    detectors: Sequence[Detector] | None = None,
    curves: AskedCurves | None = None,
) -> Iterator[RunCard]:
    """Yield one card for each run, at least one; that of a run which cannot be read or judged has the error."""
    try:
        histories = histories_of(resolve_source(source, tracking_uri), tracking_uri)
    except StabilityError as error:
        yield RunCard(source, source, error=str(error))
        return
    except Exception as error:  # a mistake of ours, or of a store's plugin, about one run
        yield RunCard(source, source, error=_unexpected("read", error))
        return
    from mlflow_stability.diagnosis.run_card import run_card_of

    for history in histories:
        try:
            placed = in_place(history, curves)
            card = replace(run_card_of(placed, concluded(placed, detectors)), source=history.source)
        except StabilityError as error:
            card = RunCard(history.source, history.name, error=str(error))
        except Exception as error:  # likewise
            card = RunCard(history.source, history.name, error=_unexpected("judged", error))
        yield card


def texts_at(
    source: str, tracking_uri: str | None, detectors: str | None, curves: Sequence[str] = ("", "")
) -> list[str]:
    """Return the cards as texts, for another process; `detectors` is a text of `catalog.describe`."""
    judges = None if detectors is None else read_detectors(detectors)
    return [card_to_json(card) for card in cards_at(source, tracking_uri, judges, AskedCurves(*curves))]


def _unexpected(what: str, error: Exception) -> str:
    return f"It could not be {what}: unexpected {type(error).__name__}, {error}. Please report it."


def filter_kinds(diagnosis: Diagnosis, kinds: Collection[str]) -> Diagnosis:
    """Return the diagnosis restricted to these kinds; unchanged for no kinds.

    The verdict is kept if no finding above INFO is hidden; a run whose trouble is hidden is never called healthy.
    """
    if not kinds:
        return diagnosis
    kept = tuple(finding for finding in diagnosis.findings if finding.kind in kinds)
    unjudged = tuple(item for item in diagnosis.cannot_tell if not item.kinds or item.kinds & set(kinds))
    diagnosis = replace(diagnosis, cannot_tell=unjudged, asked_kinds=tuple(sorted(kinds)))
    bad = [finding for finding in diagnosis.findings if finding.severity >= Severity.WARNING]
    kept_bad = [finding for finding in kept if finding.severity >= Severity.WARNING]
    if len(bad) == len(kept_bad):
        return replace(diagnosis, findings=kept)
    cause = None
    if kept_bad:
        outcome = outcome_of(kept, diagnosis.curves, "", measured=False)
        verdict = verdict_of(outcome, kept, diagnosis.curves, diagnosis.points)
        deciding = deciding_of(outcome, explainable(kept))
        cause = None if deciding is None else deciding.cause
    else:
        outcome = "not_found"
        steps = diagnosis.steps
        where = "" if steps is None else f" in {steps[1] - steps[0] + 1:,} {diagnosis.unit}s"
        nouns = (noun_of(kind).removeprefix("a ").removeprefix("an ") for kind in sorted(kinds))
        none = f"no {' or '.join(nouns)}{where}"
        mild = f"no warning{where}, only {listed(finding.kind for finding in kept)} (INFO)" if kept else ""
        verdict = f"Not found: {mild or none}. Other findings: {listed(finding.kind for finding in bad)}."
    remedies = remedies_of(kept, cause, outcome)
    return replace(diagnosis, findings=kept, outcome=outcome, verdict=verdict, cause=cause, remedies=remedies)


@check_arguments
def judge(
    losses: Iterable[float],
    *,
    grad_norms: Iterable[float] | None = None,
    learning_rates: Iterable[float] | None = None,
    val_losses: Iterable[float] | None = None,
    steps: Iterable[int] | None = None,
    detectors: Iterable[Detector | str] | None = None,
    sensitivity: str = "normal",
    name: str = "losses",
) -> Diagnosis:
    """Run the detectors on any numbers, and conclude what went wrong.

    Args:
        losses: The training loss of each step; any iterable of numbers, NaN and infinity included.
        grad_norms: The gradient norm of each step.
        learning_rates: The learning rate of each step.
        val_losses: The validation loss; fewer values than losses are spread evenly over the steps.
        steps: The number of each step; without it, 0, 1, 2, ...
        detectors: Those that judge, as ``autolog(detectors=...)`` takes them.
        sensitivity: "low", "normal" or "high": moves all thresholds but your own.
        name: What the numbers are called in the diagnosis.

    Returns:
        The verdict, with findings, causes and remedies.

    Raises:
        SettingsError: A value that does not fit, or columns of different lengths.

    Example:

        >>> from mlflow_stability.kinds import LossSpike
        >>> losses = [2.0 / (1 + step / 60) + 0.01 * (step % 3) for step in range(600)]
        >>> losses[400] *= 1.3
        >>> [(episode.kind, episode.start) for episode in judge(losses).findings]
        [('loss_spike', 400)]
        >>> judge(losses, detectors=["divergence", LossSpike(smallest_rise=1.5)]).findings
        ()
    """
    values = _numbers("losses", losses)
    if not len(values):
        raise SettingsError("losses must have at least one number; it is empty.")
    at = np.arange(len(values)) if steps is None else np.asarray(list(steps), dtype=np.int64)
    if len(at) != len(values):
        raise SettingsError(f"steps must have as many values as losses, {len(values)}; it has {len(at)}.")
    columns = {"loss": (at, values)}
    for title, quantity, column in (
        ("grad_norms", "grad_norm", grad_norms),
        ("learning_rates", "learning_rate", learning_rates),
    ):
        if column is not None:
            numbers = _numbers(title, column)
            if len(numbers) != len(values):
                count = f"{len(values)}; it has {len(numbers)}"
                raise SettingsError(f"{title} must have as many values as losses, {count}.")
            columns[quantity] = at, numbers
    if val_losses is not None:
        numbers = _numbers("val_losses", val_losses)
        if len(numbers) > len(values):
            raise SettingsError(f"val_losses must have at most as many values as losses; it has {len(numbers)}.")
        places = np.linspace(len(values) / max(len(numbers), 1), len(values), len(numbers)).astype(np.int64) - 1
        columns["val_loss"] = at[places], numbers
    meanings = metric_meanings(list(columns))
    metrics = tuple(
        Metric(
            title, meanings[title], Series(Signal(title), at, column, np.zeros(len(at), np.int64), np.zeros(len(at)))
        )
        for title, (at, column) in columns.items()
    )
    history = RunHistory(name, name, "numbers", "the given numbers", metrics)
    return concluded(history, asked_detectors(detectors, sensitivity))


def _numbers(name: str, values: Iterable[float]) -> NDArray[np.float64]:
    try:
        return np.asarray([float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        raise SettingsError(f"{name} must be an iterable of numbers; got {type(values).__name__}.") from None
