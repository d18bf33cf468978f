"""Targets: logs of other tools, MLflow folders, and what is found in them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from random import Random

from fuzz.mutations import damaged
from fuzz.pages import check_page
from fuzz.target import Drawn, Target, files_of, promised, written
from importers.formats.test_event_file import event, record, simple, tensor
from importers.test_any_file import BYTES
from importers.wandb_writer import field, history, wandb_file

from mlflow_stability.analysis.diagnose import concluded, in_place
from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.log_format import formats
from mlflow_stability.importers.open_log import read
from mlflow_stability.reports.formats import csv, markdown
from mlflow_stability.reports.formats import json as json_format
from mlflow_stability.reports.html_kit.pages import run_page
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.run import RunHistory

LARGEST_SEED, USUAL_SIZE = 2_000_000, 6000
FIXTURES = Path(__file__).resolve().parents[2] / "mlruns_fixtures"
FIXTURE = FIXTURES / "0" / "rescue"
"""A run with a record, events, tables of layers and metrics."""
NAMES = ("log.txt", "metrics.csv", "a.jsonl", "trainer_state.json", "history.pkl", "run.wandb", "train.ipynb", "out")


def log_targets(folder: Path | None, place: Path) -> dict[str, Target]:
    """Return the targets; `folder` holds further real logs, `place` is free for copies."""
    seeds = list(BYTES.items())
    endings = {ending for item in formats() for ending in item.endings}
    seeds += [
        (file.name if "tfevents" in file.name else f"a{file.suffix}", file.read_bytes())
        for file in files_of(folder, LARGEST_SEED)
        if file.suffix in endings or "tfevents" in file.name
    ]
    contents = [content for _, content in seeds]

    def draw(rng: Random) -> Drawn:
        name, content = rng.choice(seeds)
        if rng.random() < 0.15:
            name, content = rng.choice((("events.out.tfevents.1", _events(rng)), ("run.wandb", _wandb(rng))))
        content = damaged(_shortened(content, rng), contents, rng)
        name = rng.choice(NAMES) if rng.random() < 0.2 else name
        if rng.random() < 0.03:
            packed = gzip.compress(content, mtime=0)
            return Drawn(f"{name}.gz", damaged(packed, contents, rng) if rng.random() < 0.5 else packed)
        return Drawn(name, content)

    copied = place / "run"
    shutil.copytree(FIXTURE, copied)
    parts = {str(file.relative_to(copied)): file.read_bytes() for file in files_of(copied, LARGEST_SEED)}
    # Each file decides as much as the hundred of metrics together.
    weights = [1 if name.startswith(("metrics", "params", "tags")) else 20 for name in parts]
    others = list(parts.values())

    def draw_part(rng: Random) -> Drawn:
        (name,) = rng.choices(list(parts), weights)
        return Drawn(name, damaged(parts[name], others, rng))

    def check_run(drawn: Drawn, _folder: Path) -> bool:
        file = copied / drawn.name
        file.write_bytes(drawn.content)
        try:
            return bool(_read(copied))
        finally:
            file.write_bytes(parts[drawn.name])

    return {
        "logs": Target(430, draw, lambda drawn, where: bool(_read(written(drawn, where)))),
        "mlflow_folders": Target(30, draw_part, check_run),
        "diagnoses": Target(20, draw, _diagnose),
    }


def _shortened(content: bytes, rng: Random) -> bytes:
    """Return most contents as their first lines and a run of others, because short files are read sooner."""
    if len(content) <= USUAL_SIZE or rng.random() < 0.02:
        return content
    lines = content.split(b"\n")
    if len(lines) < 20:
        return content[: rng.choice((USUAL_SIZE, 4 * USUAL_SIZE))]
    start = rng.randrange(len(lines))
    first = b"\n".join(lines[: rng.choice((1, 2, 30))])[:USUAL_SIZE]
    return first + b"\n" + b"\n".join(lines[start : start + 100])[:USUAL_SIZE]


def _events(rng: Random) -> bytes:
    """Return an event file whose records have right checksums around damaged messages."""
    good = [event(n, simple("loss", 9 / n)) for n in range(1, 9)] + [event(3, tensor("loss", 1, b"\0\0\0\0"))]
    messages = [row[12:-4] for row in good]  # behind length and checksum
    return b"".join(
        record(damaged(message, messages, rng)[:5000]) if rng.random() < 0.3 else record(message)
        for message in messages
    )


def _wandb(rng: Random) -> bytes:
    records = [
        history(n, {"loss": str(9 / n), "_step": str(n), "lr": rng.choice(("1", "[" * 900, "NaN", ""))})
        for n in range(1, 9)
    ]
    return wandb_file(
        [damaged(item, records, rng)[:9000] if rng.random() < 0.3 else item for item in [*records, field(1, b"x")]]
    )


def _read(path: Path) -> list[RunHistory]:
    """Return the runs in a log; none where it was refused in one sentence."""
    try:
        runs = read(path)
    except UnreadableLogError as refusal:
        message = str(refusal)
        promised(message.isprintable() and message.endswith("."), f"refused with {message!r}")
        promised("Please report it" not in message, f"unexpected: {refusal} from {refusal.__cause__!r}")
        return []
    promised(runs, "neither runs nor a refusal")
    for run in runs:
        for metric in run.metrics:
            series = metric.series
            pairs = list(zip(series.attempts.tolist(), series.steps.tolist(), strict=True))
            promised(pairs == sorted(pairs), f"steps of {metric.name!r} are not in order")
            promised(len(pairs) == len(series.values) == len(series.times), f"arrays of {metric.name!r} differ")
    return runs


def _diagnose(drawn: Drawn, folder: Path) -> bool:
    """Diagnose what a damaged log still has, and report it."""
    runs = _read(written(drawn, folder))[:2]
    report = Report(tuple(concluded(in_place(run), None) for run in runs))
    check_page(run_page(report))
    json.loads(json_format.run(report), parse_constant=_no_constant)
    csv.run(report)
    markdown.run(report)
    return bool(runs)


def _no_constant(name: str) -> None:
    promised(holds=False, what=f"JSON with {name}")
