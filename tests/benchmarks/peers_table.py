"""What the diagnosis says of synthetic losses of 1000 steps on which other tools were compared, 20 seeds each.

python tests/benchmarks/peers_table.py [--seeds 20] [--thin N] [--rules-only | --command]

With ``--command`` each series becomes a JSONL file that `mlflow-stability diagnose` reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peer_series import OTHERS, PEERS

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.measured.observation import Series
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.run.run_history import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

Found = tuple[str, int]
Judge = Callable[[list[np.ndarray]], list[list[Found]]]


def history_of(losses: np.ndarray, every: int = 1) -> RunHistory:
    """A run that logged its loss alone, every so many steps."""
    meaning = Meaning("loss", known=True)
    steps = np.arange(0, len(losses), every)
    nothing = np.zeros(len(steps))
    series = Series(meaning.signal, steps, losses[::every], nothing.astype(np.int64), nothing)
    return RunHistory("synthetic", "synthetic", "json_lines", "all points", (Metric("loss", meaning, series),))


def in_process(every: int, *, rules_only: bool) -> Judge:
    """Build the histories here and conclude."""

    def judge(series: list[np.ndarray]) -> list[list[Found]]:
        found = []
        for losses in series:
            diagnosis = diagnosis_of(history_of(losses, every), detectors=() if rules_only else None)
            found.append([(each.kind, each.start) for each in at_warning(diagnosis)])
        return found

    return judge


def by_command(every: int) -> Judge:
    """Write JSONL files and let the command line read them, as a user would."""

    def judge(series: list[np.ndarray]) -> list[list[Found]]:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{number:03d}.jsonl" for number in range(len(series))]
            for path, losses in zip(paths, series, strict=True):
                rows = [{"step": step, "loss": float(losses[step])} for step in range(0, len(losses), every)]
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            asked = [sys.executable, "-m", "mlflow_stability", "diagnose", *map(str, paths), "--output-format", "json"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 1):
                raise SystemExit(done.stderr)
            found: dict[str, list[Found]] = {str(path): [] for path in paths}
            for issue in json.loads(done.stdout)["issues"]:
                if issue["severity"] != "INFO":
                    found[issue["source"]].append((issue["issue_type"], issue["step"]))
            return list(found.values())

    return judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--thin", type=int, default=1, help="log every so many steps")
    parser.add_argument("--rules-only", action="store_true", help="without the detectors")
    parser.add_argument("--command", action="store_true", help="through files and the command line")
    options = parser.parse_args()
    judge = by_command(options.thin) if options.command else in_process(options.thin, rules_only=options.rules_only)
    columns = f"{'series':20s} {'wanted':14s} {'found':>9s} {'others':>7s} {'episodes':>9s} {'after':>6s}"
    print(f"{columns}  kinds at WARNING or above")
    series = {**PEERS, **{name: (maker, "", 0) for name, maker in OTHERS.items()}}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    began = time.perf_counter()
    for name, (maker, wanted, onset) in series.items():
        runs = judge([maker(np.random.default_rng(seed)) for seed in seeds])
        right = [[step for kind, step in run if kind == wanted] for run in runs]
        found = sum(map(bool, right))
        others = sum(len(steps) < len(run) for steps, run in zip(right, runs, strict=True))
        delay = f"{statistics.median(steps[0] - onset for steps in right if steps):.0f}" if found else ""
        kinds = Counter(kind for run in runs for kind, _ in run)
        shown = f"{found}/{options.seeds}" if wanted else ""
        numbers = f"{name:20s} {wanted:14s} {shown:>9s} {others:7d} {sum(map(len, runs)) / len(runs):9.2f} {delay:>6s}"
        print(f"{numbers}  {dict(kinds) or ''}")
    print(f"{(time.perf_counter() - began) / (len(series) * options.seeds) * 1e3:.1f} ms a run")


def at_warning(diagnosis: Diagnosis) -> list[Finding]:
    return [each for each in diagnosis.findings if each.severity >= Severity.WARNING]


if __name__ == "__main__":
    main()
