"""Whether the diagnosis of each simulation names a right cause, and leaves its healthy twin alone.

    python tests/benchmarks/simulations.py [NAME ...] [--seed N]

Every simulation of `mlflow-stability simulate` is trained beside its twin, in a directory of its own. Printed are the
cause that was named, the causes that would be right, what else was found, and the outcome of the twin.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from mlflow_stability import Diagnosis, diagnose, simulate
from mlflow_stability.demo.failures.catalog import SIMULATIONS
from mlflow_stability.demo.training import failure_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of `mlflow-stability simulate --list`; else all")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: 0)")
    options = parser.parse_args()
    names = options.names or list(SIMULATIONS)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    right = 0
    for name in names:
        os.chdir(tempfile.mkdtemp(prefix="simulations-"))
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{Path.cwd()}/mlflow.db"
        began = time.monotonic()
        done = simulate(name, seed=options.seed)
        right += done.found
        twin = diagnose(done.healthy_run_id)
        print(
            f"{name:<24}{'right' if done.found else 'WRONG':<7}{done.cause!s:<26}"
            f"(right: {', '.join(failure_of(name, None).causes)}); found: {_kinds(done.diagnosis)}; "
            f"twin: {twin.outcome} ({_kinds(twin) or 'no finding'}); {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"{right} of {len(names)} named a right cause")


def _kinds(diagnosis: Diagnosis) -> str:
    return ", ".join(dict.fromkeys(each.kind for each in diagnosis.findings))


if __name__ == "__main__":
    main()
