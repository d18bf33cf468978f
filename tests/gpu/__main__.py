"""Checks everything that only a GPU shows, and prints a table of it.

    python tests/gpu                     # all of it, on CUDA
    python tests/gpu --only attention    # rows whose names hold this
    python tests/gpu --device cpu --quick

Exits with 1 if a check failed. Without CUDA, `--device cpu` runs what has a meaning there, so that the checks
themselves are known to work.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

import torch  # noqa: E402
from gpu.check import Bench, Check, NotHereError  # noqa: E402
from gpu.every_check import CHECKS  # noqa: E402


def row_of(check: Check, bench: Bench) -> tuple[str, str]:
    """The outcome of a check, and its figure."""
    if check.needs_cuda and not bench.is_cuda:
        return "not here", "needs CUDA"
    try:
        outcome = check.run(bench)
    except NotHereError as error:
        return "not here", str(error)
    except Exception as error:  # whatever fails is a row, and the others run
        traceback.print_exc()
        return "FAILED", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ("passed" if outcome.passed else "FAILED"), outcome.figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="part of the names of checks")
    parser.add_argument("--quick", action="store_true", help="few repetitions; overheads are shown, not judged")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu runs what has a meaning without one")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}\n")
    print("| check | result | figure |\n| --- | --- | --- |", flush=True)
    results: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, check in enumerate(entry for entry in CHECKS if asked.only in entry.name):
            result, figure = row_of(check, Bench(device, Path(folder, str(number)), asked.quick))
            results[result] += 1
            print(f"| {check.name} | {result} | {figure} |", flush=True)
        os.chdir("/")
    print("\n" + ", ".join(f"{count} {result}" for result, count in sorted(results.items())))
    return 1 if results["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
