"""Records the trainings again and puts them into `mlruns_fixtures/`, in MLflow's file layout.

python tests/recordings/remake.py [NAME …]

Each run's folder bears the name of its training; what it must be diagnosed as is in its `expected.json`, which is
written by hand and kept. What belongs to a machine or a person is taken out: paths, users, commits. Experiment 0 holds
runs of earlier versions, whose findings have no facts: it is read by tests and never made again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "mlruns_fixtures"
EXPERIMENT = FIXTURES / "1"
EXPERIMENT_PAGE = """artifact_location: file:///mlruns_fixtures/1
creation_time: 1780000000000
experiment_id: '1'
last_update_time: 1780000000000
lifecycle_stage: active
name: with facts
"""
PERSONAL_TAGS = re.compile(r"mlflow\.(user|source\..*)")
PERSONAL_FACTS = ("argv", "device_name", "processors", "system")
PERSONAL_PARAMS = tuple(f"stability.{fact}" for fact in PERSONAL_FACTS)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from inside import INSIDE
    from trainings import TRAININGS

    values = [*TRAININGS, *INSIDE]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(values)}; all where none is given")
    names = parser.parse_args().names or values
    if unknown := [value for value in names if value not in values]:
        parser.error(f"no such training: {', '.join(unknown)}")
    EXPERIMENT.mkdir(parents=True, exist_ok=True)
    (EXPERIMENT / "meta.yaml").write_text(EXPERIMENT_PAGE)
    for name in names:
        with tempfile.TemporaryDirectory() as room:
            put_away(record(name, Path(room)), name)
        print(name)


def record(name: str, room: Path) -> Path:
    """The folder of the run that the training left in a file store."""
    store = room / "mlruns"
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": store.as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_STABILITY_EXIT_WAIT": "60",
    }
    command = [sys.executable, str(Path(__file__).with_name("trainings.py")), name]
    subprocess.run(command, cwd=room, env=environment, capture_output=True, check=False)
    until = time.monotonic() + 60  # of a killed training the courier delivers the rest
    journals = room / ".mlflow-stability"
    while any(path.is_dir() and path.name not in (CHECKPOINTS_FOLDER, BATCHES_FOLDER) for path in journals.glob("*")):
        if time.monotonic() > until:
            raise RuntimeError(f"The recording of {name} was not delivered within a minute.")
        time.sleep(0.2)
    (run,) = [path.parent for path in store.glob("0/*/meta.yaml")]
    return run


def put_away(run: Path, name: str) -> None:
    """Move it into the fixtures under the name of its training."""
    place = EXPERIMENT / name
    expected = (place / "expected.json").read_text() if (place / "expected.json").exists() else None
    shutil.rmtree(place, ignore_errors=True)
    meta = (run / "meta.yaml").read_text().replace(run.name, name)
    meta = re.sub(r"(?m)^artifact_uri: .*$", f"artifact_uri: file:///mlruns_fixtures/1/{name}/artifacts", meta)
    meta = re.sub(r"(?m)^user_id: .*$", "user_id: someone", meta)
    shutil.copytree(run, place)
    meta = re.sub(r"(?m)^experiment_id: .*$", "experiment_id: '1'", meta)
    (place / "meta.yaml").write_text(meta)
    for tag in (place / "tags").iterdir():
        if PERSONAL_TAGS.fullmatch(tag.name):
            tag.unlink()
        elif tag.name.startswith("mlflow.stability.recording."):
            tag.write_text(re.sub(r'"host": "[^"]*"', '"host": ""', tag.read_text()))
        else:
            tag.write_text(tag.read_text().replace(str(run.parents[2]), "").replace(run.name, name))
    for param in PERSONAL_PARAMS:
        (place / "params" / param).unlink(missing_ok=True)
    made = [path for pattern in ("*.png", "*.webp", "report.*") for path in place.rglob(pattern)]
    for path in made:
        path.unlink()  # drawn from the record, and half of all bytes
    for facts in place.glob("artifacts/stability/data/environment*.json"):
        kept = {name: fact for name, fact in json.loads(facts.read_text()).items() if name not in PERSONAL_FACTS}
        facts.write_text(json.dumps(kept, indent=1) + "\n")
    shutil.rmtree(place / "artifacts" / "stability" / "checkpoints", ignore_errors=True)
    for story in place.glob("artifacts/stability/data/recording-*.json"):
        story.write_text(story.read_text().replace(str(run.parents[2]), ""))
    for events in place.glob("artifacts/stability/**/events/*.jsonl"):
        text = re.sub(r'"(host|directory|tracking_uri)": "[^"]*"', r'"\1": ""', events.read_text())
        lines = text.replace(run.name, name).replace(str(run.parents[2]), "").splitlines(keepends=True)
        left_out = (*PERSONAL_FACTS, "spike_batch")  # whose file is not kept
        events.write_text("".join(line for line in lines if not any(f'"{value}"' in line for value in left_out)))
    if expected is not None:
        (place / "expected.json").write_text(expected)


if __name__ == "__main__":
    main()
