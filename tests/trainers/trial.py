"""One training of the table in this process: `python trial.py NAME MODE OUT`, with `tests` in the path."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import traceback
from pathlib import Path
from typing import cast

from trainers.catalog import trainer_named
from trainers.script import Mode, Script


def main(name: str, mode: Mode, out: Path) -> int:
    trainer = trainer_named(name)
    versions = {item: importlib.metadata.version(item) for item in (*trainer.shown, "torch")}
    out.with_suffix(".versions").write_text(json.dumps(versions), encoding="utf-8")
    try:
        trainer.train(Script(mode, out))
    except Exception as error:  # whatever a training dies of is a row of the table
        out.with_suffix(".error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], cast(Mode, sys.argv[2]), Path(sys.argv[3])))
