from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from architecture.repository import ROOT
from figures.attention import attention
from figures.drawings import texts
from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Metric

from mlflow_stability.analysis.attention import attention_entropy_plot, attention_heatmap, compare_attention
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.tracking.artifacts import MAPS_FOLDER, AttentionPart, write_attention_part
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.vocabulary.measured.signal import Signal


def run_folder(folder: Path, steps: tuple[int, ...] = (10, 500), **map_of: int) -> Path:
    """A run in MLflow's file layout, with maps of two layers at these steps."""
    maps = folder / "artifacts" / MAPS_FOLDER
    maps.mkdir(parents=True)
    for step in steps:
        layers = [attention(2, step=step, number=number, layer=f"h.{number}.attn", **map_of) for number in (0, 3)]
        write_attention_part(maps / AttentionPart(0, 0, step).name, layers)
    return folder


def texts_in(figure: Figure) -> str:
    return " | ".join(texts(figure))


def test_without_a_choice_the_first_layer_at_the_last_step_is_drawn(tmp_path: Path) -> None:
    words = texts_in(attention_heatmap(run_folder(tmp_path / "gpt")))
    assert "Attention in h.0.attn" in words
    assert "step 500" in words
    assert "gpt" in words


@pytest.mark.parametrize("layer", [3, "h.3.attn", "3.attn"])
def test_a_layer_is_chosen_by_its_number_or_its_name_and_a_step_by_its_own(tmp_path: Path, layer: str | int) -> None:
    words = texts_in(attention_heatmap(run_folder(tmp_path / "gpt"), step=10, layer=layer))
    assert "Attention in h.3.attn" in words
    assert "step 10 " in words


def test_the_later_maps_of_a_repeated_step_are_drawn(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "gpt")
    again = folder / "artifacts" / MAPS_FOLDER / AttentionPart(0, 1, 500).name
    write_attention_part(again, [attention(5, attempt=1)])
    assert "mean of 5" in texts_in(attention_heatmap(folder))


def test_errors_for_missing_maps_and_layers_list_what_is_available(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "gpt")
    with pytest.raises(SettingsError, match=r"no attention maps of step 400; the nearest are of step 500.*10, 500"):
        attention_heatmap(folder, step=400)
    with pytest.raises(SettingsError, match=r"no layer 'h\.9'.*0: h\.0\.attn, 3: h\.3\.attn"):
        attention_heatmap(folder, layer="h.9")
    with pytest.raises(SettingsError, match="more than one layer 'attn'"):
        attention_heatmap(folder, layer="attn")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFoundError, match="has no attention maps"):
        attention_heatmap(tmp_path / "empty")


def test_a_map_can_be_drawn_as_it_is() -> None:
    assert "Attention in h.7" in texts_in(attention_heatmap(attention(layer="h.7")))


@pytest.mark.slow
def test_two_runs_are_compared_at_the_last_step_that_both_have(tmp_path: Path) -> None:
    first, other = run_folder(tmp_path / "small"), run_folder(tmp_path / "large", (10, 700), seed=1)
    words = texts_in(compare_attention(first, other))
    assert "step 10 " in words
    assert "small" in words
    assert "large" in words
    assert "Attention in h.3.attn" in texts_in(compare_attention(first, other, layer=3))
    assert "steps 500 and 900" in texts_in(compare_attention(first, run_folder(tmp_path / "late", (900,))))
    with pytest.raises(SettingsError, match="large has no attention maps of step 500"):
        compare_attention(first, other, step=500)


def test_the_error_for_a_missing_step_names_the_run_and_the_steps_that_both_runs_have(tmp_path: Path) -> None:
    small, large = run_folder(tmp_path / "small", (10, 25, 150)), run_folder(tmp_path / "large", (10, 25, 100))
    lacking = r"large has no attention maps of step 150, while small has\. The nearest step that both have is 25\."
    for pair in ((small, large), (large, small)):
        with pytest.raises(SettingsError, match=lacking + r" Both have maps of 10, 25\."):
            compare_attention(*pair, step=150)
    with pytest.raises(SettingsError, match=r"Neither small nor large has .* step 11\. The nearest .* is 10\."):
        compare_attention(small, large, step=11)
    with pytest.raises(SettingsError, match="They share no step; without `step` the last of each are compared"):
        compare_attention(small, run_folder(tmp_path / "late", (900,)), step=900)


@pytest.mark.slow
def test_layers_of_different_models_are_both_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "gpt")
    other = run_folder(tmp_path / "seq2seq")
    maps = other / "artifacts" / MAPS_FOLDER
    encoder = attention(2, step=500, number=0, layer="backbone.encoder.layers.0.self_attn", kind="cross")
    write_attention_part(maps / AttentionPart(0, 1, 500).name, [encoder])
    words = texts_in(compare_attention(folder, other))
    assert "Attention in h.0.attn and in backbone" in words
    assert "layers.0.self_attn" in words
    assert "different layers" in words
    assert "self-attention and cross-attention" in words
    with pytest.raises(SettingsError, match=r"no layer 'h\.0\.attn' in seq2seq at step 500.*0: backbone\.encoder"):
        compare_attention(folder, other, layer="h.0.attn")


def test_a_layer_that_both_have_is_chosen_before_one_that_only_the_first_has(tmp_path: Path) -> None:
    first, other = run_folder(tmp_path / "gpt"), run_folder(tmp_path / "late")
    maps = other / "artifacts" / MAPS_FOLDER
    write_attention_part(maps / AttentionPart(0, 1, 500).name, [attention(2, step=500, number=3, layer="h.3.attn")])
    words = texts_in(compare_attention(first, other))
    assert "Attention in h.3.attn of two runs" in words
    assert "different layers" not in words


@pytest.mark.slow
def test_a_map_is_compared_with_a_run_and_with_a_map(tmp_path: Path) -> None:
    words = texts_in(compare_attention(run_folder(tmp_path / "gpt"), attention(2, seed=9)))
    assert "gpt" in words
    assert "second map" in words
    assert "first map" in texts_in(compare_attention(attention(), attention(seed=1)))


@pytest.mark.slow
def test_a_path_loads_neither_mlflow_nor_torch(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "gpt")
    code = (
        "import sys, mlflow_stability\n"
        f"mlflow_stability.attention_heatmap({str(folder)!r})\n"
        "print([name for name in ('mlflow', 'torch', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_run_of_a_store_is_drawn_and_compared_and_its_entropy_too(tmp_path: Path, sqlite_uri: str) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    runs = [str(client.create_run("0", run_name=name).info.run_id) for name in ("baseline", "hot", "bare")]
    for run, seed in zip(runs[:2], (0, 1), strict=True):
        folder = run_folder(tmp_path / f"maps_of_{run}", seed=seed)
        client.log_artifacts(run, str(folder / "artifacts" / MAPS_FOLDER), MAPS_FOLDER)
        signals = [Signal("attention_entropy", f"h.{layer}.attn.head_{head}") for layer in (0, 3) for head in (1, 0)]
        metrics = [Metric(metric_key(signal), 0.5, step, step) for signal in signals for step in (10, 500)]
        client.log_batch(run, metrics)
    assert "baseline" in texts_in(attention_heatmap(runs[0], tracking_uri=sqlite_uri))
    words = texts_in(compare_attention(runs[0], runs[1], tracking_uri=sqlite_uri))
    assert "baseline" in words
    assert "hot" in words
    figure = attention_entropy_plot(runs[0], tracking_uri=sqlite_uri)
    words = texts_in(figure)
    assert "2 layers, all in h · 2 heads · " in words
    assert words.count(" · baseline") == 1
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    with pytest.raises(RunNotFoundError, match="has no attention maps"):
        attention_heatmap(runs[2], tracking_uri=sqlite_uri)
    client.log_metric(runs[2], "loss", 1.0)
    with pytest.raises(RunNotFoundError, match="has no attention_entropy"):
        attention_entropy_plot(runs[2], tracking_uri=sqlite_uri)
