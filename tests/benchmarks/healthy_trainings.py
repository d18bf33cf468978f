"""What is said of healthy trainings of many kinds, live and afterwards: there should be nothing.

python tests/benchmarks/healthy_trainings.py [--only NAME ...] [--seeds 3] [--jobs 1] [--slow] [--keep FOLDER]

Each training of `zoo.healthy.catalog` has to have learnt its task, and is judged by the five views of `zoo.judged`.
`--slow` takes the trainings that break slowly instead, of which something should be said. `--keep` keeps what was
recorded, so that judgements can be tried again without training again.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from zoo.healthy.catalog import HEALTHY
from zoo.judged import VIEWS, Judged, Trained, judged, trained, words
from zoo.slow_failures import SLOW_FAILURES

from mlflow_stability.vocabulary.result.severity import Severity

ILL = {each.name: each for each in SLOW_FAILURES}
TRAININGS = {each.__name__: each for each in (*HEALTHY, *(each.train for each in SLOW_FAILURES))}


def of(name: str, seed: int, folder: Path | None) -> Judged:
    """Train it in this process, unless it was kept, and judge it."""
    kept = None if folder is None else folder / f"{name}_{seed}.pickle"
    if kept is not None and kept.is_file():
        result: Trained = pickle.loads(kept.read_bytes())
        return judged(result, anew=True)
    result = trained(TRAININGS[name], seed)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(result))
    return judged(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trainings whose name holds one of these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--slow", action="store_true", help="the trainings that break slowly")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    names = list(ILL) if options.slow else [each.__name__ for each in HEALTHY]
    if options.only:
        names = [name for name in names if any(part in name for part in options.only)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(f"{'training':30}{'seed':>5}{'steps':>7}{'s':>6}  what is said, by {', '.join(VIEWS)}")
    results: dict[tuple[str, int], Judged] = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        asked = {(name, seed): pool.submit(of, name, seed, options.keep) for seed in seeds for name in names}
        for (name, seed), future in asked.items():
            results[name, seed] = result = future.result()
            print_row(name, seed, result)
    summary(results)


def print_row(name: str, seed: int, result: Judged) -> None:
    said = "".join(f"\n{'':10}{view}: {words(kinds)}" for view in VIEWS if (kinds := result.kinds(view)))
    ill = f"  NOT LEARNT: {result.failure}" if result.failure else ""
    print(f"{name:30}{seed:5}{result.steps:7}{result.seconds:6.1f}{ill}{said or '  nothing'}", flush=True)
    messages = [each for found in result.found.values() for each in found if each.severity >= Severity.WARNING]
    for message in dict.fromkeys(f"{each.severity.name} {each.step}: {each.message}" for each in messages):
        print(f"{'':14}{message}")


def summary(results: dict[tuple[str, int], Judged]) -> None:
    print(f"\n{len(results)} trainings, {sum(bool(each.failure) for each in results.values())} of which did not learn")
    for view in VIEWS:
        kinds = sum((each.kinds(view) for each in results.values()), Counter[str]())
        print(
            f"{view:12} {sum(not each.kinds(view) for each in results.values()):4} without a finding   {words(kinds)}"
        )
    silent = sum(not any(each.kinds(view) for view in VIEWS) for each in results.values())
    print(f"{'all of them':12} {silent:4} without a finding")
    ill = [(ILL[name].expected, result) for (name, _), result in results.items() if name in ILL]
    if ill:
        print(f"{sum(result.names(expected) for expected, result in ill)} of {len(ill)} found as what they are")


if __name__ == "__main__":
    main()
