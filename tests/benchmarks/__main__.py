"""Run benchmarks: `python -m tests.benchmarks NAME… [--quick] [--set OPTION=VALUE …] [--json FILE] [--write]`.

Each benchmark is a function whose keyword arguments are its options. It yields tables, which are printed as they come.
`--list` names them all. `--quick` takes smaller settings, which show that a benchmark runs and little else. `--write`
writes the tables into the manual, where a page has a place for them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import platform
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS)]

from benchmarks.manual_tables import write  # noqa: E402
from benchmarks.table import Table  # noqa: E402

LIBRARIES = ("torch", "mlflow", "numpy", "scipy", "pandas", "lightning")
PEERS = Path(__file__).with_name("peers") / "requirements.txt"
"""Other tools that some benchmarks measure, if they are installed."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Where a benchmark is, and what it measures."""

    module: str
    line: str
    quick: dict[str, Any] = field(default_factory=dict)
    """Options of `--quick`."""

    def function(self, name: str) -> Callable[..., Iterable[Table]]:
        return getattr(importlib.import_module(f"benchmarks.{self.module}"), name)


BENCHMARKS = {
    "overhead": Benchmark(
        "overhead",
        "CPU and wall time of a small GPT, watched to bare, in turns",
        {"rounds": 2, "only": ("watched",), "couriers_start": 5.0},
    ),
    "small_step": Benchmark("small_step", "a step of ten parameters, and one of 10 ms, watched to bare", {"blocks": 4}),
    "outlets": Benchmark(
        "small_step", "the small step with alerts, Prometheus and mirrors", {"blocks": 4, "only": ("default",)}
    ),
    "step_calls": Benchmark("small_step", "calls, functions and files of each kind of step"),
    "parallel_step": Benchmark(
        "parallel_step", "a step of several gloo ranks, watched to bare", {"ranks": 2, "blocks": 3, "only": ("ddp",)}
    ),
    "rescue": Benchmark(
        "rescue", "22 failures: bare, guarded, rolled back, and a healthy reference", {"seeds": 1, "only": ("GPT: lr",)}
    ),
    "peers_rescue": Benchmark(
        "peers.rescue", "eight failures: bare, with this tool, with others", {"only": ("NaN inputs", "GPT: bad batch")}
    ),
    "causes": Benchmark(
        "causes", "how often the named cause of a failure is right", {"only": ("NaN inputs",), "modes": ("watch",)}
    ),
    "simulations": Benchmark("causes", "the named cause of each simulation, and its twin", {"only": ("bad-batch",)}),
    "healthy_trainings": Benchmark(
        "trainings", "findings of healthy trainings of many kinds: there should be none", {"seeds": 1, "only": ("mlp",)}
    ),
    "tutorials": Benchmark(
        "trainings", "43 tutorials: bare, watched, with rollbacks", {"seeds": 1, "only": ("siamese",)}
    ),
    "false_alarms": Benchmark(
        "trainings", "how often healthy runs have each finding, for the findings reference", {"drawn": 40}
    ),
    "detection": Benchmark(
        "detection",
        "false alarms, recall and cost of the live detectors, beside classic and published rules",
        {"healthy_steps": 20_000, "trials": 10, "cost_steps": 10_000},
    ),
    "rule_recall": Benchmark(
        "rule_recall",
        "what a diagnosis finds in drawn curves, and what it finds wrongly",
        {"runs": 12, "longest": 3000},
    ),
    "operating_points": Benchmark(
        "rule_recall", "recall beside false alarms for stricter and looser thresholds", {"runs": 4, "longest": 1000}
    ),
    "drawn_curves": Benchmark(
        "peers.drawn_curves", "what a diagnosis finds in the drawn curves of `peers`", {"seeds": 2}
    ),
    "peers": Benchmark(
        "peers.judgement", "drawn curves and real records, judged by other tools and this one", {"seeds": 2, "most": 20}
    ),
    "real_records": Benchmark("real_records", "recall and precision on a folder of real records with labels"),
    "fuzz": Benchmark("fuzz", "drawn inputs for all readers: nothing hangs, breaks out or is left", {"inputs": 1000}),
    "cohort": Benchmark("cohort", "what is named in 200 runs with two planted causes", {"repetitions": 1}),
    "delivery": Benchmark("delivery", "whether delivery keeps up", {"seconds": 10.0, "stores": ("sqlite",)}),
    "soak": Benchmark(
        "soak",
        "a million steps with everything on, and 24 recordings, while server, clock and disk fail",
        {"steps": 5000, "recordings": 2, "steps_of_a_recording": 200, "away": 3.0, "disk_mib": 20},
    ),
    "journal": Benchmark("delivery", "time and room of a million journalled values", {"values": 100_000}),
    "slow_directory": Benchmark(
        "delivery", "a journal whose file operations take 1 to 20 ms", {"steps": 60, "milliseconds": (0.0, 5.0)}
    ),
    "compare_scale": Benchmark("tracking", "a comparison of 1,000 runs, on SQLite and over REST", {"runs": 20}),
    "tracking_scale": Benchmark(
        "tracking",
        "PostgreSQL and S3: many trainings at once, 1,000 runs compared, 100,000 runs searched",
        {"trainings": 2, "steps": 40, "compared": 10, "searched": 2000, "turns": 1},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="say what each benchmark measures")
    parser.add_argument("--quick", action="store_true", help="take smaller settings")
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options of the benchmarks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables, the machine and versions here")
    parser.add_argument("--write", action="store_true", help="write the tables into the manual")
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--quick measures little: nothing of it is written into the manual")
    if options.list or not options.names:
        print("\n".join(f"{name:<18} {benchmark.line}" for name, benchmark in BENCHMARKS.items()))
        return
    if unknown := sorted({*options.names} - {*BENCHMARKS}):
        parser.error(f"no benchmark {unknown[0]!r}; --list names them all")
    functions = {name: BENCHMARKS[name].function(name) for name in options.names}
    quick = {name: BENCHMARKS[name].quick if options.quick else {} for name in options.names}
    settings = {
        name: quick[name] | settings_of(name, function, options.set, options.names)
        for name, function in functions.items()
    }
    for name, function in functions.items():
        for option, parameter in inspect.signature(function).parameters.items():
            if parameter.default is inspect.Parameter.empty and option not in settings[name]:
                parser.error(f"{name} needs --set {option}=…")
    file = options.json and options.json.resolve()
    results = [run(name, function, settings[name]) for name, function in functions.items()]
    if options.write:
        tables = {result["name"]: [Table(**table) for table in result["tables"]] for result in results}
        print("\n".join(f"written: {page}" for page in write(tables, measured())) or "No page has a place for them.")
    if file:
        report = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **environment(), "results": results}
        file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def settings_of(name: str, function: Callable[..., object], given: list[str], names: list[str]) -> dict[str, Any]:
    """Return the options of one benchmark; an option that none of the benchmarks has is an error."""
    types = typing.get_type_hints(function)
    by_item = {item: inspect.signature(BENCHMARKS[item].function(item)).parameters for item in names}
    settings = {}
    for text in given:
        option, _, value = text.partition("=")
        if option in by_item[name]:
            settings[option] = parsed(value, types[option])
        elif not any(option in parameters for parameters in by_item.values()):
            choices = ", ".join(f"{item}={parameter.default}" for item, parameter in by_item[name].items())
            raise SystemExit(f"{name} has no option {option!r}. Its options: {choices}")
    return settings


def parsed(value: str, kind: Any) -> Any:
    """Read a value as the type of the argument that it is for."""
    if typing.get_origin(kind) is tuple:
        return tuple(parsed(part, typing.get_args(kind)[0]) for part in value.split(",") if part)
    if typing.get_args(kind):  # X | None
        return parsed(value, typing.get_args(kind)[0])
    if kind is bool:
        return value in ("1", "true", "yes")
    return Path(value).resolve() if kind is Path else kind(value)


def run(name: str, function: Callable[..., Iterable[Table]], settings: dict[str, Any]) -> dict[str, Any]:
    """Run one benchmark in a folder of its own and print its tables."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # Processes that benchmarks start import the package and the tests of this checkout.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])
    print(f"== {name}: {BENCHMARKS[name].line}", flush=True)
    began, tables = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as folder, inside(folder):
        for table in function(**settings):
            print(f"\n{table}", flush=True)
            tables.append(asdict(table))
        end_couriers(folder)
    seconds = round(time.perf_counter() - began, 1)
    print(f"\n{name}: {seconds:g} s\n", flush=True)
    shown = {option: str(value) if isinstance(value, Path) else value for option, value in settings.items()}
    return {"name": name, "settings": shown, "seconds": seconds, "tables": tables}


def end_couriers(folder: str) -> None:
    """End the couriers of this benchmark: its folder is removed."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "mlflow_stability.courier" in command and any(folder in word for word in command):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def inside(folder: str) -> typing.Iterator[None]:
    """Work in this folder; `contextlib.chdir` is not in Python 3.10."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def environment() -> dict[str, Any]:
    """Return the machine and the versions that a time depends on."""
    versions = {"python": platform.python_version()}
    peers = [line.partition("==")[0] for line in PEERS.read_text().splitlines() if "==" in line]
    for library in (*LIBRARIES, *peers, "mlflow-stability"):
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)
    machine = {"processor": platform.processor() or platform.machine(), "system": platform.platform()}
    return {"machine": {**machine, "cores": os.cpu_count(), "load": os.getloadavg()[0]}, "versions": versions}


def measured() -> str:
    """Say when and where something was measured, for the manual."""
    result = environment()
    machine, versions = result["machine"], result["versions"]
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "mlflow", "lightning"))
    where = f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}"
    return f"Measured on {datetime.now(timezone.utc):%Y-%m-%d} ({where}; {libraries})"


if __name__ == "__main__":
    main()
