"""How often a diagnosis finds what was put into drawn training curves, and how often it finds what is not there.

python tests/benchmarks/rule_recall.py                        every kind of finding, 400 runs of each form
python tests/benchmarks/rule_recall.py --quick                a quarter of that, and no long curves
python tests/benchmarks/rule_recall.py --kind spike           one kind: spike, divergence, overfitting, plateau, nan
python tests/benchmarks/rule_recall.py --kind none            the healthy runs alone
python tests/benchmarks/rule_recall.py --rules                the rules of whole curves without the detectors' replay
python tests/benchmarks/rule_recall.py --sensitivity high     at another sensitivity
python tests/benchmarks/rule_recall.py --classic              by the classic rules
python tests/benchmarks/rule_recall.py --threshold 3          with a threshold of one's own for spikes and explosions
python tests/benchmarks/rule_recall.py --operating-points     recall beside false alarms for stricter and looser ones
python tests/benchmarks/rule_recall.py --misses               and which runs were missed, to look at them by seed

A run counts as found if a finding of its kind, WARNING or CRITICAL, begins at the event; a divergence also serves for
a spike. A spike that recovered at once is INFO, so that of spikes INFO counts as well, but not as a false alarm. Runs
are drawn by `zoo.curves`: points, logging, noise and shapes as real logs have them, sizes log-uniform. Sizes are in
nats (how far the logarithm of the loss moves) and in σ, the noise of one point at that place.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from zoo.curves.drawn import DrawnRun, PlacedEvent, Setting
from zoo.curves.healthy import PLAIN, TRAPS, healthy_run
from zoo.curves.ill import FORMS, NON_FINITE, ill_run

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import moved
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import ON_REQUEST, RULES, default_detectors, name_of
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.rules import found_by
from mlflow_stability.kinds.thresholds import chosen
from mlflow_stability.vocabulary.judging_rule import CLASSIC
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.sensitivity import FACTORS

KINDS = {"spike": "loss_spike", "divergence": "divergence", "overfitting": "overfitting", "plateau": "plateau"}
ACCEPTED = {
    "loss_spike": {"loss_spike", "divergence"},
    "nan_detected": {"nan_detected", "inf_detected"},
    "inf_detected": {"nan_detected", "inf_detected"},
}
"""What else names an event of a kind; for the others their own name alone."""
PLACED = {"loss_spike", "divergence", "nan_detected", "inf_detected"}
LONGEST_QUICK = 3000
EDGES = {
    "σ": (3.0, 5.0, 8.0, 12.0, 20.0, 50.0),
    "nats": (0.1, 0.14, 0.26, 0.4, 0.7, 1.2),
    "points": (12.0, 20.0, 40.0, 100.0, 300.0, 1000.0),
    "length": (0.02, 0.05, 0.1, 0.3, 0.5, 0.7),
    "validations": (8.0, 12.0, 20.0, 40.0, 100.0, 300.0),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What a diagnosis said of one drawn run."""

    form: str
    seed: int
    setting: Setting
    event: PlacedEvent | None
    found: bool
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
            return chosen(["default", *(name_of(each) for each in ON_REQUEST if each.rule == CLASSIC)])
        if self.threshold is not None:
            alone = {"threshold": self.threshold, "threshold_alone": True}
            return chosen(["default", LossSpike(**alone), GradientExplosion(**alone)])
        return tuple(moved(each, self.factor) for each in default_detectors())


def findings_of(run: DrawnRun, how: How) -> Sequence[Finding]:
    history = run.history()
    if how.rules_alone:
        return found_by(RULES, run_curves(history), how.detectors)
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
    serious = [each for each in findings if each.severity >= Severity.WARNING]
    found = False
    if run.event is not None:
        accepted = ACCEPTED.get(run.event.kind, {run.event.kind})
        placed = run.event.kind in PLACED
        found = any(
            each.kind in accepted and (not placed or near(each.start, run.event, run.setting))
            for each in findings
            if each.severity >= Severity.WARNING or each.kind == run.event.kind == "loss_spike"
        )
    kinds = tuple(sorted({each.kind for each in serious}))
    return Judged(
        run.name, run.seed, run.setting, run.event, found, kinds, any(e.severity >= Severity.CRITICAL for e in serious)
    )


def judged(forms: Iterable[str], seeds: range, how: How, processes: int = 1) -> list[Judged]:
    """All of them, in order."""
    asked = [(form, seed) for form in forms for seed in seeds]
    one = functools.partial(_judge, how=how)
    if processes == 1:
        return [each for each in map(one, asked) if each is not None]
    with ProcessPoolExecutor(processes) as pool:
        return [each for each in pool.map(one, asked, chunksize=20) if each is not None]


def judged_healthy(seeds: range, how: How, processes: int = 1) -> list[Judged]:
    """About as many plain runs as traps."""
    traps = range(seeds.start, seeds.start + len(seeds) // 4)
    plain = range(seeds.start, seeds.start + len(seeds) // 4 * len(TRAPS))
    return judged([PLAIN], plain, how, processes) + judged(TRAPS, traps, how, processes)


def _judge(asked: tuple[str, int], how: How) -> Judged | None:
    return judge(*asked, how)


def table(title: str, columns: Sequence[str], rows: dict[str, dict[str, str]]) -> None:
    print(f"\n{title}\n" + "-" * len(title))
    print(" " * 26 + "".join(f"{column:>13}" for column in columns))
    for name, cells in rows.items():
        print(f"{name:26}" + "".join(f"{cells.get(column, ''):>13}" for column in columns))


def share(runs: Sequence[Judged]) -> str:
    return f"{sum(each.found for each in runs) / len(runs):4.0%} ({len(runs)})" if runs else ""


def false_alarms(runs: Sequence[Judged]) -> None:
    """Of the healthy: which share has a WARNING of which kind; half plain ones, half traps."""
    kinds = [kind for kind, _ in Counter(kind for each in runs for kind in each.serious).most_common(7)]
    rows: dict[str, dict[str, str]] = {}

    def row(name: str, of: Sequence[Judged]) -> None:
        if of:
            cells = {kind: f"{sum(kind in each.serious for each in of) / len(of):.1%}" for kind in kinds}
            any_of = {"any": f"{sum(bool(each.serious) for each in of) / len(of):.1%}"}
            rows[f"{name} ({len(of)})"] = {
                **cells,
                **any_of,
                "critical": f"{sum(e.critical for e in of) / len(of):.1%}",
            }

    row("all healthy", runs)
    for name in (PLAIN, *TRAPS):
        row(name, [each for each in runs if each.form == name])
    table("Healthy runs with a WARNING, by kind", ["any", "critical", *kinds], rows)


def axes(event: PlacedEvent, setting: Setting) -> dict[str, float]:
    known = {"nats": event.size, "σ": event.strength, "points": float(setting.points)}
    known["length"] = event.points / (setting.validations if "validation" in event.form else setting.points)
    if event.kind == "overfitting":
        known["validations"] = float(setting.validations)
        known["length"] = event.points / max(1, setting.validations)
    return known


def binned(runs: Sequence[Judged], axis: str) -> dict[str, str]:
    edges = EDGES[axis]
    names = [f"<{edges[0]:g}", *(f"{low:g}-{high:g}" for low, high in pairwise(edges))]
    names.append(f">{edges[-1]:g}")
    cells: dict[str, list[Judged]] = {name: [] for name in names}
    for each in runs:
        if each.event is not None:
            value = axes(each.event, each.setting)[axis]
            cells[names[sum(value >= edge for edge in edges)]].append(each)
    return {name: share(of) for name, of in cells.items()}


def recall(kind: str, runs: Sequence[Judged]) -> None:
    """By size, noise, points and length, each form in a row."""
    forms = list(dict.fromkeys(each.form for each in runs))
    by_form = {form: [each for each in runs if each.form == form] for form in forms}
    wanted = ["σ", "nats", "points", "length", *(["validations"] if kind == "overfitting" else [])]
    if kind in ("plateau", "nan"):
        wanted = ["points"]
    for axis in wanted:
        rows = {form: binned(of, axis) for form, of in by_form.items()}
        table(f"Recall of {kind}, by {axis}", list(next(iter(rows.values()))), rows)
    for name, key in (("noise", _noise), ("logging", _logging), ("family", _family)):
        columns = sorted({key(each) for each in runs})
        rows = {
            form: {"all": share(of), **{c: share([e for e in of if key(e) == c]) for c in columns}}
            for form, of in by_form.items()
        }
        table(f"Recall of {kind}, by {name}", ["all", *columns], rows)


def _noise(run: Judged) -> str:
    return run.setting.noise


def _logging(run: Judged) -> str:
    return run.setting.logging


def _family(run: Judged) -> str:
    return run.setting.family


def misses(runs: Sequence[Judged]) -> None:
    for each in runs:
        if each.event is not None and not each.found:
            size = f"{each.event.size:.2f} nats = {each.event.strength:.1f}σ, {each.event.points} points"
            what = f"{size} at step {each.event.start}; got {each.serious}"
            print(f"  missed {each.form} seed {each.seed}: {what}; {each.setting}")
        elif each.event is None and each.serious:
            print(f"  false alarm {each.form} seed {each.seed}: {each.serious}; {each.setting}")


def forms_of(kind: str) -> tuple[str, ...]:
    if kind == "nan":
        return NON_FINITE
    return tuple(name for name, form in FORMS.items() if form.kind == KINDS[kind])


def operating_points(seeds: range, how: How, processes: int) -> None:
    """What stricter and looser thresholds find, and how many healthy runs they flag."""
    rows: dict[str, dict[str, str]] = {}
    names = {factor: name for name, factor in FACTORS.items()}
    for factor in sorted({*FACTORS.values(), 0.5, 0.85, 1.2, 2.0}, reverse=True):
        at = replace(how, factor=factor)
        healthy = judged_healthy(seeds, at, processes)
        cells = {f"recall {kind}": share(judged(forms_of(kind), seeds, at, processes)) for kind in KINDS}
        plain = [each for each in healthy if each.form == PLAIN]
        for name, of in (("healthy", healthy), ("plain", plain)):
            cells[f"{name} flagged"] = f"{sum(bool(each.serious) for each in of) / len(of):.1%}"
        cells["CRITICAL"] = f"{sum(each.critical for each in healthy) / len(healthy):.1%}"
        rows[f"thresholds x {factor:g} {names.get(factor, '')}"] = {
            k.replace("recall ", ""): v for k, v in cells.items()
        }
    table("Recall beside healthy runs flagged, by how strict the thresholds are", list(next(iter(rows.values()))), rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["none", *KINDS, "nan"], action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--sensitivity", choices=list(FACTORS), default="normal")
    parser.add_argument("--classic", action="store_true")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--operating-points", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    runs = options.runs or (100 if options.quick else 400)
    longest = LONGEST_QUICK if options.quick else 100_000
    how = How(options.rules, longest, FACTORS[options.sensitivity], options.classic, options.threshold)
    seeds = range(options.seed, options.seed + runs)
    if options.operating_points:
        operating_points(seeds, how, options.processes)
        return
    everything = judged_healthy(seeds, how, options.processes)
    false_alarms(everything)
    for kind in options.kind or [*KINDS, "nan"]:
        if kind != "none":
            ill = judged(forms_of(kind), seeds, how, options.processes)
            recall(kind, ill)
            everything += ill
    if options.misses:
        misses(everything)
    print(f"\n{len(everything):,} runs in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
