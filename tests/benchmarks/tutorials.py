"""Healthy trainings as tutorials write them: bare, watched, and with rollbacks. Nothing may be found, done or changed.

python tests/benchmarks/tutorials.py [--only NAME ...] [--seeds 3] [--first-seed 0] [--jobs 1]
    [--modes watched rollback] [--bare FILE]

A row for each training: the final scores (mean of the seeds), on how many seeds the weights end bit-identical to the
bare training, findings of at least WARNING, rollbacks, skipped steps, outcomes, and CPU seconds. A training whose bare
score is out of its bounds is not healthy, and marked. With `--bare`, bare results are kept in this file and used again.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from zoo.tutorials.catalog import TUTORIALS, tutorial_named
from zoo.tutorials.trial import MODES, Mode, Trial, tried

Results = dict[tuple[int, Mode], Trial]
COLUMNS = f"{'same':>5}{'WARN':>5}{'rolled':>7}{'skip':>5}{'s':>6}  outcomes"
HEADER = f"{'training':22}{'bare':>9}{'watched':>9}{'rollback':>9}  {COLUMNS}"


def run(name: str, seed: int, mode: Mode) -> Trial:
    return tried(tutorial_named(name), seed, mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trainings whose name holds one of these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--modes", nargs="+", choices=MODES[1:], default=MODES[1:])
    parser.add_argument("--bare", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = [tutorial.name for tutorial in TUTORIALS]
    if options.only:
        names = [name for name in names if any(part in name for part in options.only)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(HEADER)
    seconds, silent, same, healthy = 0.0, 0, 0, 0
    kept: dict[tuple[str, int], Trial] = {}
    if options.bare and options.bare.is_file():
        kept = pickle.loads(options.bare.read_bytes())
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        asked = {
            name: {
                (seed, mode): pool.submit(run, name, seed, mode)
                for seed in seeds
                for mode in ("bare", *options.modes)
                if mode != "bare" or (name, seed) not in kept
            }
            for name in names
        }
        for name, futures in asked.items():
            results = {(seed, "bare"): kept[name, seed] for seed in seeds if (name, seed) in kept}
            results |= {key: future.result() for key, future in futures.items()}
            print_row(name, results, options.modes)
            seconds += sum(trial.seconds for trial in results.values())
            for (seed, mode), trial in results.items():
                if mode == "bare":
                    kept[name, seed] = trial
                    healthy += trial.learned
                else:
                    silent += not trial.warnings and not trial.error
                    same += trial.weights == results[seed, "bare"].weights
            if options.bare:
                options.bare.write_bytes(pickle.dumps(kept))
    total = len(options.modes) * len(names) * len(seeds)
    print(
        f"\n{len(names)} trainings, {len(seeds)} seeds: {healthy} of {len(names) * len(seeds)} healthy bare; "
        f"of {total} watched: {same} bit-identical, {silent} without a warning; {seconds:.0f} CPU seconds"
    )


def print_row(name: str, results: Results, modes: Sequence[Mode]) -> None:
    def of(mode: Mode) -> list[Trial]:
        return [trial for (_, its), trial in results.items() if its == mode]

    observed = [trial for (_, mode), trial in results.items() if mode != "bare"]
    means = {mode: sum(trial.score for trial in of(mode)) / len(of(mode)) for mode in ("bare", *modes)}
    scores = "".join(f"{means[mode]:9.4g}" if mode in means else f"{'':9}" for mode in MODES)
    bare = {seed: trial.weights for (seed, mode), trial in results.items() if mode == "bare"}
    same = sum(trial.weights == bare[seed] for (seed, mode), trial in results.items() if mode != "bare")
    outcomes = Counter(outcome for trial in observed for outcome in trial.outcomes)
    rolled, skipped = (sum(trial.actions(kind) for trial in observed) for kind in ("rollback", "step_skipped"))
    print(
        f"{name:22}{scores}  {f'{same}/{len(observed)}':>5}{sum(len(trial.warnings) for trial in observed):5}"
        f"{rolled:7}{skipped:5}{sum(trial.seconds for trial in results.values()):6.1f}  "
        + ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common()),
        flush=True,
    )
    for (seed, mode), trial in results.items():
        where = f"      seed {seed} {mode}: "
        if mode == "bare" and not trial.learned:
            print(f"{where}NOT HEALTHY: {trial.score:.4g} {trial.error}")
        if mode != "bare" and trial.error:
            print(f"{where}ended by {trial.error}")
        for warning in trial.warnings:
            print(f"{where}{warning}")
        if trial.warnings:
            for verdict in trial.verdicts:
                print(f"{where}verdict: {verdict}")


if __name__ == "__main__":
    main()
