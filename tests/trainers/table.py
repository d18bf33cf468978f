"""Prints how watching and rescuing does with other people's trainers: `python tests/trainers/table.py [NAMES …]`.

Every trainer's script runs bare, watched, and twice with a NaN batch: under `guard=True` and under `rollback=True`.
What is not installed here is installed into an environment outside the checkout. A trainer that fails is a row that
says so.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from trainers.catalog import trainer_named, trainers
from trainers.environment import NotInstallableError, python_for, usual_folder
from trainers.row import HEAD, Row, failed, row_of
from trainers.script import MODES, Trainer
from trainers.trials import run_trial, template_store


def row_for(trainer: Trainer, environments: Path, folder: Path, template: Path) -> Row:
    """Run a trainer in every mode."""
    try:
        python = python_for(trainer, environments)
    except NotInstallableError as refused:
        return failed(trainer.name, f"not installable: {refused}")
    trials = {mode: run_trial(trainer, mode, python, folder / mode, template) for mode in MODES}
    again = None
    if trials["bare"].noted != trials["watched"].noted:
        again = run_trial(trainer, "bare", python, folder / "again", template)
    return row_of(trainer, trials, again)


def markdown(rows: Sequence[Row]) -> str:
    """The table, and under it the notes on each trainer."""
    lines = [" | ".join(HEAD), " | ".join("---" for _ in HEAD)]
    lines += [" | ".join((row.name, *row.cells)) for row in rows]
    text = "\n".join(f"| {line} |" for line in lines)
    remarks = [f"- **{row.name}**: {remark}" for row in rows for remark in row.remarks]
    here = f"Python {platform.python_version()}, torch {version('torch')}, MLflow {version('mlflow')}."
    return "\n\n".join([here, text, "\n".join(remarks)]).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run those that were named, or all."""
    parser = argparse.ArgumentParser(prog="table.py", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(trainers()))
    parser.add_argument("--venv", type=Path, default=usual_folder(), help="for the environments (%(default)s)")
    parser.add_argument("--output", type=Path, help="write the table there, too, after every row")
    parser.add_argument("--keep", type=Path, help="keep the folders of the trials there")
    given = parser.parse_args(arguments)
    chosen = [trainer_named(name) for name in given.names] or list(trainers().values())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        template = template_store(Path(temporary))
        for number, trainer in enumerate(chosen):
            rows.append(row_for(trainer, given.venv, folder / f"{number:02}", template))
            print(markdown(rows[-1:]), file=sys.stderr, flush=True)
            if given.output:
                given.output.write_text(markdown(rows), encoding="utf-8")
    print(markdown(rows))
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
