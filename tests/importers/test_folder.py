from __future__ import annotations

import json
from pathlib import Path

from analysis.logs import falling, write_log

from mlflow_stability.cli.main import run
from mlflow_stability.importers.open_log import is_own_report, read


def test_reports_of_our_commands_are_distinguished_from_logs_by_their_first_bytes() -> None:
    write_log(Path("good.jsonl"), falling())
    for command in ("diagnose", "compare"):
        for ending in ("json", "csv"):
            report = Path(f"{command}.{ending}")
            assert run([command, "good.jsonl", "--output", str(report)]) == 0
            assert is_own_report(report.read_bytes())
    assert not is_own_report(Path("good.jsonl").read_bytes())


def test_a_log_with_a_column_called_source_or_rank_is_read() -> None:
    folder = Path("logs")
    folder.mkdir()
    rows = "".join(f"{step},a,{4 / (1 + step)}\n" for step in range(20))
    for name, first in (("sources.csv", "source"), ("ranks.csv", "rank")):
        (folder / name).write_text(f"{first},name,loss\n{rows}")
    rounds = [{"step": step, "summary": {"loss": 4 / (1 + step)}, "schema_version": 1} for step in range(20)]
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in rounds))
    assert {entry.name for entry in read(folder)} >= {"sources.csv", "ranks.csv", "rounds.jsonl"}
