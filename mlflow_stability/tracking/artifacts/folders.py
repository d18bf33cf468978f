"""Folders of this package among a run's artifacts.

What people open is in `stability/`: report, dashboard, pictures, checkpoints. What programs read is in
`stability/data/`. In runs of version 0.1 the record and the events were beside the pictures; they are read from
either place.
"""

from __future__ import annotations

FOLDER = "stability"
DATA_FOLDER = f"{FOLDER}/data"
RECORD_FOLDER = f"{DATA_FOLDER}/record"
EVENTS_FOLDER = f"{DATA_FOLDER}/events"
LAYER_TABLES_FOLDER = f"{DATA_FOLDER}/layers"
MAPS_FOLDER = f"{DATA_FOLDER}/attention"
ATTENTION_FOLDER = f"{FOLDER}/attention"
"""Pictures."""
RECORD_FOLDERS = (f"{FOLDER}/record", RECORD_FOLDER)
EVENTS_FOLDERS = (f"{FOLDER}/events", EVENTS_FOLDER)
LAYER_TABLES_FOLDERS = (f"{FOLDER}/layers", LAYER_TABLES_FOLDER)
MAPS_FOLDERS = (f"{ATTENTION_FOLDER}/maps", MAPS_FOLDER)
README = """\
What mlflow-stability recorded, for programs. Read it with `mlflow_stability.load_run(RUN_ID)`.

| file | what is in it |
| --- | --- |
| `record/*.parquet` | every value of every step |
| `events/*.jsonl` | findings, settings, gaps, how the recording began and ended |
| `layers/*.parquet` | statistics and histograms of the layers |
| `attention/*.npz` | attention maps |
| `environment.json` | settings and versions, complete |
| `recording-000.json` | how it was delivered |
"""
"""The file beside them."""
