"""What a row of the table says: the trials of one trainer, compared.

In: the trials, by mode. Out: texts for the table. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from trainers.script import NAN_AT, Mode, Trainer
from trainers.trials import Noted, Recorded, Series, Trial

HEAD = (
    "trainer",
    "steps seen / real",
    "loss",
    "gradient norm",
    "validation loss",
    "bit-identical",
    "guard",
    "rollback",
    "run",
    "versions",
)
NOT_TRIED = "–"
NOT_RECORDED = "not recorded !"
AFTER_CLIPPING = "as the optimizer was given it"
"""How the tag begins where an engine clips unseen."""
RESCUES: tuple[Mode, ...] = ("guard", "rollback")
CLOSE = 1e-4
"""A relative difference above this is marked: an ordinary one is that of sums in another order."""
SENDER = "mlflow-stability: "
EXPECTED = ("nan_detected: ", "step_skipped: ", "rank_nonfinite: ", "Still on the way to MLflow after 0 s")
"""How warnings begin that the NaN, and not waiting for the delivery of its trial, must lead to."""


@dataclass(frozen=True)
class Row:
    """The cells, and the notes beside them."""

    name: str
    cells: tuple[str, ...] = ("",) * (len(HEAD) - 1)
    remarks: list[str] = field(default_factory=list)
    good: bool = False


def failed(name: str, why: str) -> Row:
    """A trainer that could not even be tried."""
    return Row(name, remarks=[why])


def row_of(trainer: Trainer, trials: Mapping[Mode, Trial], again: Trial | None = None) -> Row:
    """Compare. ``again`` is a second bare training, where the first and the watched one differ."""
    bare, watched = trials["bare"], trials["watched"]
    remarks = [f"{mode}: {trial.error}" for mode, trial in trials.items() if trial.error]
    lines = [
        line for trial in trials.values() for line in trial.lines if not line.removeprefix(SENDER).startswith(EXPECTED)
    ]
    remarks += list(dict.fromkeys(lines))
    steps, loss, norm, names = _against_the_script(watched.noted, watched.recorded)
    identical = _identical(bare.noted, watched.noted, again.noted if again else None)
    rescued = [skipped(trials[mode].noted) if mode in trials else NOT_TRIED for mode in RESCUES]
    run = ", ".join(watched.recorded.status) if watched.recorded else ""
    if watched.noted and watched.recorded and sorted(watched.noted.sampled) != sorted(watched.recorded.sampled):
        run += f", with parameters of {len(watched.recorded.sampled)} of {len(watched.noted.sampled)} trials !"
    versions = ", ".join(f"{value} {version}" for value, version in bare.versions.items() if value != "torch")
    if watched.recorded and watched.recorded.tags.get("stability.grad_norm", "").startswith(AFTER_CLIPPING):
        norm = "after clipping, as the run says"
    cells = (steps, loss, norm, _validation(watched), identical, *rescued, run or "none")
    good = _is_good(cells) and not any(trial.error for trial in trials.values())
    own_log = trials["guard"].noted.own_log if "guard" in trials and trials["guard"].noted else []
    if own_log and math.isfinite(own_log[NAN_AT]):
        remarks.append(f"its own log has a loss of {own_log[NAN_AT]:g} for the NaN of step {NAN_AT + 1}")
    if names:
        remarks.insert(0, f"tracks: {names}")
    return Row(trainer.name, (*cells, versions), remarks, good)


def _is_good(cells: tuple[str, ...]) -> bool:
    steps, loss, norm, validation, identical, guard, rollback, run = cells
    counts = [word.partition(" / ") for word in steps.split(", ")]
    right = all(seen == real for seen, _, real in counts) and "!" not in loss + norm + validation
    rescued = {guard, rollback} <= {"skipped", NOT_TRIED}
    return right and identical == "yes" and rescued and set(run.split(", ")) == {"FINISHED"}


def _against_the_script(noted: Noted | None, recorded: Recorded | None) -> tuple[str, str, str, str]:
    """Steps, loss and norm, each track with the recorded one that is most like it."""
    if noted is None:
        return "", "", "", ""
    steps, losses, norms, names = [], [], [], []
    left = dict(recorded.tracks) if recorded else {}
    for track, real in noted.tracks.items():
        count = len(real.weights) - 1
        result = min(left, key=lambda item: _unlike(left[item], real), default=None)
        seen = left.pop(result) if result is not None else Series([], [])
        steps.append(f"{max(len(seen.losses), len(seen.norms))} / {count}")
        losses.append(_difference(seen.losses, real.losses))
        norms.append(_difference(seen.norms, real.norms))
        if len(noted.tracks) > 1:
            names.append(f"{track} = {_place(result) if result else 'not recorded'}")
    for name, more in left.items():
        steps.append(f"{max(len(more.losses), len(more.norms))} / 0")
        names.append(f"{_place(name)} is no track of the script")
    return ", ".join(steps), ", ".join(losses), ", ".join(norms), ", ".join(names)


def _validation(watched: Trial) -> str:
    """How far the recorded validation losses are from those of the trainer."""
    real = watched.noted.validation if watched.noted else []
    seen = watched.recorded.validation if watched.recorded else []
    if len(seen) != len(real):
        return f"{len(seen)} of {len(real)} !"
    return _difference(seen, real) if real else NOT_TRIED


def _place(name: str) -> str:
    """How a recorded track is called in its run."""
    return name.split(":", 2)[2] or "the first"


def _unlike(seen: Series, real: Series) -> tuple[float, int]:
    def distance(values: list[float], other: list[float]) -> float:
        return _largest(values, other) if values and other else 1.0

    return distance(seen.losses, real.losses) + distance(seen.norms, real.norms), abs(
        len(seen.losses) - len(real.losses)
    )


def _largest(seen: list[float], real: list[float]) -> float:
    """The largest relative difference, of the steps that both have."""
    pairs = list(zip(seen, real, strict=False))
    scale = max((abs(value) for _, value in pairs if math.isfinite(value)), default=0.0) * 1e-6 or 1e-12
    different = [
        abs(first - other) / max(abs(other), scale) if math.isfinite(first) and math.isfinite(other) else math.inf
        for first, other in pairs
        if not (math.isnan(first) and math.isnan(other))
    ]
    return max(different, default=0.0)


def _difference(seen: list[float], real: list[float]) -> str:
    if not real:
        return "not seen by the script"
    if not seen:
        return NOT_RECORDED
    largest = _largest(seen, real)
    return f"{largest:.0e}{' !' if largest > CLOSE else ''}"


def _identical(bare: Noted | None, watched: Noted | None, again: Noted | None) -> str:
    if bare is None or watched is None:
        return ""
    if bare == watched:
        return "yes"
    if again is not None and again != bare:
        return "not repeatable itself"
    places = [
        text
        for text, same in {
            "weights": [track.weights for track in bare.tracks.values()]
            == [track.weights for track in watched.tracks.values()],
            "losses": [track.losses for track in bare.tracks.values()]
            == [track.losses for track in watched.tracks.values()],
            "norms": [track.norms for track in bare.tracks.values()]
            == [track.norms for track in watched.tracks.values()],
            "buffers": bare.state == watched.state,
            "random generators": bare.random == watched.random,
        }.items()
        if not same
    ]
    return f"no: {', '.join(places)}"


def skipped(noted: Noted | None) -> str:
    """Whether the step with the NaN, and it alone, left the weights as they were."""
    if noted is None:
        return ""
    values = [_skipped(series) for series in noted.tracks.values() if _broken(series)]
    if not values:
        return "no NaN reached the loss"
    return (next((item for item in values if item), "") or "skipped") + ("" if noted.finite else ", NaN at the end")


def _broken(series: Series) -> list[int]:
    return [step for step, value in enumerate(series.losses or series.norms) if not math.isfinite(value)]


def _skipped(series: Series) -> str:
    """What is wrong with it, if anything is."""
    kept = [step for step, (now, then) in enumerate(pairwise(series.weights)) if now == then]
    if kept == _broken(series) and len(kept) == 1:
        return ""
    return f"NaN at {_steps(_broken(series))}, weights unchanged by {_steps(kept)}"


def _steps(steps: list[int]) -> str:
    few = ", ".join(map(str, steps[:4])) or "none"
    return few + (f", … ({len(steps)})" if len(steps) > 4 else "")
