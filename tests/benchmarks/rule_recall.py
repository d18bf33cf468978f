"""How often a diagnosis finds what was put into drawn training curves, and how often it finds what is not there.

A run counts as found if a finding of its kind, WARNING or CRITICAL, begins at the event; a divergence also serves for
a spike. A spike that recovered at once is INFO: of spikes INFO counts as well, but not as a false alarm. Runs are drawn
by `zoo.curves`: points, logging, noise and shapes as real logs have them, sizes log-uniform. Sizes are in nats (how far
the logarithm of the loss moves) and in σ, the noise of one point at that place.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from benchmarks.table import Cell, Table, share, table_of
from zoo.curves.drawn import DrawnRun, PlacedEvent, Setting
from zoo.curves.healthy import PLAIN, TRAPS, healthy_run
from zoo.curves.ill import FORMS, NON_FINITE, ill_run

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import scale_thresholds
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.replay import apply_rules
from mlflow_stability.kinds.catalog import ON_REQUEST, RULES, choose_detectors, default_detectors, name_of
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.judging import CLASSIC, FACTORS
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.finding import Finding

KINDS = {"spike": "loss_spike", "divergence": "divergence", "overfitting": "overfitting", "plateau": "plateau"}
ACCEPTED = {
    "loss_spike": {"loss_spike", "divergence"},
    "nan_detected": {"nan_detected", "inf_detected"},
    "inf_detected": {"nan_detected", "inf_detected"},
}
"""What else names an event of a kind; for the others their own name alone."""
PLACED = {"loss_spike", "divergence", "nan_detected", "inf_detected"}
QUICK_LONGEST = 3000
EDGES = {
    "σ": (3.0, 5.0, 8.0, 12.0, 20.0, 50.0),
    "nats": (0.1, 0.14, 0.26, 0.4, 0.7, 1.2),
    "points": (12.0, 20.0, 40.0, 100.0, 300.0, 1000.0),
    "length": (0.02, 0.05, 0.1, 0.3, 0.5, 0.7),
    "validations": (8.0, 12.0, 20.0, 40.0, 100.0, 300.0),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """Diagnosis of one drawn run."""

    form: str
    seed: int
    setting: Setting
    event: PlacedEvent | None
    is_found: bool
    serious: tuple[str, ...]
    """The kinds of its findings that are WARNING or CRITICAL."""
    critical: bool


@dataclass(frozen=True, slots=True)
class How:
    """How runs are judged."""

    rules_alone: bool = False
    longest: int = 100_000
    """Longer runs are left out."""
    factor: float = 1.0
    """Of all thresholds, as `detectors.sensitivity` moves them."""
    classic: bool = False
    """Whether spikes, explosions and divergences are judged by the classic rules."""
    threshold: float | None = None
    """Of loss spikes and gradient explosions, in σ."""

    @property
    def detectors(self) -> tuple[Detector, ...]:
        if self.classic:
            return choose_detectors(["default", *(name_of(item) for item in ON_REQUEST if item.rule == CLASSIC)])
        if self.threshold is not None:
            alone = {"threshold": self.threshold, "threshold_alone": True}
            return choose_detectors(["default", LossSpike(**alone), GradientExplosion(**alone)])
        return tuple(scale_thresholds(detector, self.factor) for detector in default_detectors())


def findings_of(run: DrawnRun, how: How) -> Sequence[Finding]:
    history = run.history()
    if how.rules_alone:
        return apply_rules(RULES, run_curves(history), how.detectors)
    return diagnosis_of(history, detectors=how.detectors).findings


def near(step: int, event: PlacedEvent, setting: Setting) -> bool:
    """Whether a finding that begins there speaks of this event."""
    span = setting.stride * (setting.points - 1)
    if event.kind == "divergence":
        return event.start - max(2 * setting.stride, 0.05 * span) <= step <= event.end
    slack = max(2.0 * setting.stride, 0.02 * event.end)
    return event.start - slack <= step <= event.end + slack


def judge(form: str, seed: int, how: How) -> Judged | None:
    """Draw one run and diagnose it; None for one that is too long."""
    ill = form in FORMS or form in NON_FINITE
    run = ill_run(form, seed) if ill else healthy_run(seed, form)
    return None if run.setting.points > how.longest else judge_run(run, how)


def judge_run(run: DrawnRun, how: How) -> Judged:
    """Diagnose a run."""
    findings = findings_of(run, how)
    serious = [finding for finding in findings if finding.severity >= Severity.WARNING]
    is_found = False
    if run.event is not None:
        accepted = ACCEPTED.get(run.event.kind, {run.event.kind})
        placed = run.event.kind in PLACED
        is_found = any(
            finding.kind in accepted and (not placed or near(finding.start, run.event, run.setting))
            for finding in findings
            if finding.severity >= Severity.WARNING or finding.kind == run.event.kind == "loss_spike"
        )
    kinds = tuple(sorted({finding.kind for finding in serious}))
    critical = any(finding.severity >= Severity.CRITICAL for finding in serious)
    return Judged(run.name, run.seed, run.setting, run.event, is_found, kinds, critical)


def judged(forms: Iterable[str], seeds: range, how: How, processes: int = 1) -> list[Judged]:
    """All of them, in order."""
    asked = [(form, seed) for form in forms for seed in seeds]
    judge_asked = functools.partial(_judge, how=how)
    if processes == 1:
        return [run for run in map(judge_asked, asked) if run is not None]
    with ProcessPoolExecutor(processes) as pool:
        return [run for run in pool.map(judge_asked, asked, chunksize=20) if run is not None]


def judged_healthy(seeds: range, how: How, processes: int = 1) -> list[Judged]:
    """About as many plain runs as traps."""
    traps = range(seeds.start, seeds.start + len(seeds) // 4)
    plain = range(seeds.start, seeds.start + len(seeds) // 4 * len(TRAPS))
    return judged([PLAIN], plain, how, processes) + judged(TRAPS, traps, how, processes)


def _judge(asked: tuple[str, int], how: How) -> Judged | None:
    return judge(*asked, how)


def rule_recall(
    kinds: tuple[str, ...] = (*KINDS, "nan"),
    runs: int = 400,
    seed: int = 0,
    longest: int = 100_000,
    processes: int = 1,
    rules_alone: bool = False,
    sensitivity: str = "normal",
    classic: bool = False,
    threshold: float | None = None,
    misses: bool = False,
) -> Iterator[Table]:
    """Diagnose this number of runs of each form; `kinds` is empty for the healthy runs alone.

    `rules_alone` leaves out the replay of the detectors; `threshold` is one for spikes and explosions, in σ; `misses`
    lists what was missed, by seed.
    """
    how = How(rules_alone, longest, FACTORS[sensitivity], classic, threshold)
    seeds = range(seed, seed + runs)
    everything = judged_healthy(seeds, how, processes)
    yield false_alarms(everything)
    for kind in kinds:
        ill = judged(forms_of(kind), seeds, how, processes)
        yield from recall(kind, ill)
        everything += ill
    if misses:
        yield table_of("Missed runs and false alarms", _wrong(everything))


def operating_points(
    runs: int = 400, seed: int = 0, longest: int = 100_000, processes: int = 1, rules_alone: bool = False
) -> Iterator[Table]:
    """Compare stricter and looser thresholds: what they find, and how many healthy runs they flag."""
    seeds = range(seed, seed + runs)
    names = {factor: name for name, factor in FACTORS.items()}
    rows = []
    for factor in sorted({*FACTORS.values(), 0.5, 0.85, 1.2, 2.0}, reverse=True):
        how = How(rules_alone, longest, factor)
        healthy = judged_healthy(seeds, how, processes)
        row: dict[str, Cell] = {"thresholds": f"x {factor:g} {names.get(factor, '')}"}
        row |= {kind: _recall(judged(forms_of(kind), seeds, how, processes)) for kind in KINDS}
        row["healthy flagged"] = share(sum(bool(run.serious) for run in healthy), len(healthy))
        plain = [run for run in healthy if run.form == PLAIN]
        row["plain flagged"] = share(sum(bool(run.serious) for run in plain), len(plain))
        row["CRITICAL"] = share(sum(run.critical for run in healthy), len(healthy))
        rows.append(row)
    yield table_of("Recall beside healthy runs flagged, by how strict the thresholds are", rows)


def false_alarms(runs: Sequence[Judged]) -> Table:
    """Share of the healthy runs that have a WARNING, by kind; half of them plain, half traps."""
    kinds = [kind for kind, _ in Counter(kind for run in runs for kind in run.serious).most_common(7)]
    rows: list[dict[str, Cell]] = []
    for name in ("all healthy", PLAIN, *TRAPS):
        group = [run for run in runs if name in (run.form, "all healthy")]
        if group:
            rows.append(
                {
                    "runs": name,
                    "count": len(group),
                    "any": f"{sum(bool(run.serious) for run in group) / len(group):.1%}",
                    "critical": f"{sum(run.critical for run in group) / len(group):.1%}",
                    **{kind: f"{sum(kind in run.serious for run in group) / len(group):.1%}" for kind in kinds},
                }
            )
    return table_of("Healthy runs with a WARNING, by kind", rows)


def recall(kind: str, runs: Sequence[Judged]) -> Iterator[Table]:
    """Recall by size, noise, points and length, each form in a row."""
    by_form = {form: [run for run in runs if run.form == form] for form in dict.fromkeys(run.form for run in runs)}
    wanted = ["σ", "nats", "points", "length", *(["validations"] if kind == "overfitting" else [])]
    if kind in ("plateau", "nan"):
        wanted = ["points"]
    for axis in wanted:
        yield table_of(
            f"Recall of {kind}, by {axis}", [{"form": form, **binned(group, axis)} for form, group in by_form.items()]
        )
    for name in ("noise", "logging", "family"):
        key = attrgetter(f"setting.{name}")
        columns = sorted({key(run) for run in runs})
        rows = [
            {
                "form": form,
                "all": _recall(group),
                **{column: _recall([run for run in group if key(run) == column]) for column in columns},
            }
            for form, group in by_form.items()
        ]
        yield table_of(f"Recall of {kind}, by {name}", rows)


def _recall(runs: Sequence[Judged]) -> str:
    return share(sum(run.is_found for run in runs), len(runs))


def axes(event: PlacedEvent, setting: Setting) -> dict[str, float]:
    values = {"nats": event.size, "σ": event.strength, "points": float(setting.points)}
    values["length"] = event.points / (setting.validations if "validation" in event.form else setting.points)
    if event.kind == "overfitting":
        values["validations"] = float(setting.validations)
        values["length"] = event.points / max(1, setting.validations)
    return values


def binned(runs: Sequence[Judged], axis: str) -> dict[str, Cell]:
    edges = EDGES[axis]
    names = [f"<{edges[0]:g}", *(f"{low:g}-{high:g}" for low, high in pairwise(edges)), f">{edges[-1]:g}"]
    groups: dict[str, list[Judged]] = {name: [] for name in names}
    for run in runs:
        if run.event is not None:
            value = axes(run.event, run.setting)[axis]
            groups[names[sum(value >= edge for edge in edges)]].append(run)
    return {name: _recall(group) for name, group in groups.items()}


def _wrong(runs: Sequence[Judged]) -> Iterator[dict[str, Cell]]:
    for run in runs:
        if run.event is not None and not run.is_found:
            size = f"{run.event.size:.2f} nats = {run.event.strength:.1f}σ, {run.event.points} points"
            what = f"missed {size} at step {run.event.start}"
        elif run.event is None and run.serious:
            what = "false alarm"
        else:
            continue
        kinds = ", ".join(run.serious)
        yield {"form": run.form, "seed": run.seed, "what": what, "kinds": kinds, "setting": str(run.setting)}


def forms_of(kind: str) -> tuple[str, ...]:
    if kind == "nan":
        return NON_FINITE
    return tuple(name for name, form in FORMS.items() if form.kind == KINDS[kind])
