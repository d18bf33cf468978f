from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from figures.layers import gpt_layers, normal, not_finite, table
from journal.test_layer_tables import bare, equal

from mlflow_stability.tracking.read.run_record import part_name, read_layer_part, write_layer_part


def test_tables_are_read_back_unchanged(tmp_path: Path) -> None:
    tables = [
        bare(100),
        bare(100, "weight"),
        table(1000, gpt_layers(12), [not_finite, normal()]),
        table(1000, gpt_layers(9), [normal()], "weight"),
        table(2000, gpt_layers(12), [normal()]),
    ]
    write_layer_part(tmp_path / "part.parquet", tables, 0)
    back = read_layer_part(tmp_path / "part.parquet")
    assert len(back) == len(tables)
    assert all(equal(first, other) for first, other in zip(back, tables, strict=True))


def test_anybody_can_read_a_part_with_pandas_and_steps_are_the_runs(tmp_path: Path) -> None:
    values = table(1000, ["embed", "head"], [normal()])
    write_layer_part(tmp_path / "part.parquet", [values], 1, offset=500)
    frame = pd.read_parquet(tmp_path / "part.parquet")
    assert frame["step"].tolist() == [1500, 1500]
    assert frame["layer"].tolist() == ["embed", "head"]
    assert frame["recording"].tolist() == [1, 1]
    assert frame["p50"].tolist() == values.percentiles[:, 3].tolist()
    assert frame["counts"][0].tolist() == values.counts[0].tolist()
    assert np.array_equal(frame["edges"][1], values.edges[1])


def test_names_of_parts_sort_by_recording_and_step() -> None:
    places = [(0, 9), (0, 1500), (2, 0), (2, 1500), (2, 10**11)]
    names = [part_name(*place) for place in places]
    assert names == sorted(names)
    assert len(set(names)) == len(places)
