from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analysis.logs import falling, write_log
from findings import at_step
from mlflow import MlflowClient

from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.pictures import compare_layers
from mlflow_stability.errors import SettingsError
from mlflow_stability.tracking.artifacts import EVENTS_FOLDER, RECORD_FOLDER, events_name, line_of
from mlflow_stability.tracking.read.run_record import PartBuffer, part_name
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity

LAYERS = ("embed", "blocks.0.attn", "blocks.1.attn", "head")
HEADS = tuple(f"blocks.{block}.attn.head_{head}" for block in range(2) for head in range(3))
EVERY = 5


def recorded(uri: str, folder: Path, name: str, *, explodes: int | None = None, heads: bool = True) -> str:
    """A run of 400 steps in two parts, with layers and heads each fifth step; one may explode in its third layer."""
    losses = falling(seed=1)[:400]
    plain = (Signal("loss"),)
    layers = tuple(Signal("grad_norm", layer) for layer in LAYERS)
    probed = (*plain, *layers, *(Signal("attention_entropy", head) for head in HEADS if heads))
    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0", tags={"stability.outcome": "finished"}, run_name=name).info.run_id)
    (folder / RECORD_FOLDER).mkdir(parents=True)
    for part, steps in enumerate((range(200), range(200, 400))):
        buffer = PartBuffer()
        for step in steps:
            ill = explodes is not None and step >= explodes
            loss = float(losses[step]) * (1.0 if not ill else 40.0 + step)
            norms = [1.0, 2.0, 1e4 if ill else 3.0, 4.0]
            entropies = [0.01 if ill else 2.0] + [2.0] * 5 if heads else []
            values = (loss, *norms, *entropies) if step % EVERY == 0 else (loss,)
            signals = probed if step % EVERY == 0 else plain
            buffer.add(StepReading(step, signals, tuple(values), 0, 100.0 + step), step)
        buffer.write(folder / RECORD_FOLDER / part_name(0, part), 0)
    client.log_artifacts(run_id, str(folder / RECORD_FOLDER), RECORD_FOLDER)
    client.set_terminated(run_id)
    return run_id


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_layers_and_heads_of_two_recorded_runs_are_compared_side_by_side(sqlite_uri: str, tmp_path: Path) -> None:
    wild = recorded(sqlite_uri, tmp_path / "wild", "wild", explodes=250)
    calm = recorded(sqlite_uri, tmp_path / "calm", "calm")
    comparison = compare([wild, calm], tracking_uri=sqlite_uri)
    assert [card.name for card in comparison.cards] == ["calm", "wild"]
    onset = comparison.cards[1].onset
    assert onset is not None
    norms, entropies = comparison.layers
    assert (norms.quantity, norms.layers) == ("grad_norm", LAYERS)
    assert (entropies.quantity, entropies.layers) == ("attention_entropy", HEADS)
    assert norms.zeros == (onset, onset)
    assert norms.aligned
    assert norms.farthest is not None
    assert (norms.farthest.layer, norms.farthest.first) == ("blocks.1.attn", 3.0)
    assert norms.farthest.second == pytest.approx(1e4)
    assert entropies.farthest is not None
    assert entropies.farthest.layer == "blocks.0.attn.head_0"
    zero = -norms.begin // norms.width
    assert np.nanmax(norms.second[2, : zero - 1]) == 3.0
    assert np.nanmin(norms.second[2, zero + 1 :]) == 1e4
    assert comparison.first_difference is not None
    assert (comparison.first_difference.first, comparison.first_difference.second) == (calm, wild)
    assert "wild" in comparison.first_difference.sentence
    assert "calm" in comparison.first_difference.sentence
    assert comparison.notes == ()


def test_a_note_names_the_run_without_attention_heads(sqlite_uri: str, tmp_path: Path) -> None:
    first = recorded(sqlite_uri, tmp_path / "one", "one")
    other = recorded(sqlite_uri, tmp_path / "other", "other", heads=False)
    comparison = compare([first, other], tracking_uri=sqlite_uri)
    assert [layer.quantity for layer in comparison.layers] == ["grad_norm"]
    assert comparison.notes == ("other has no attention entropy by head to compare with one.",)


def test_an_event_at_an_impossible_step_prevents_only_the_comparison_step_by_step(
    sqlite_uri: str, tmp_path: Path
) -> None:
    first, other = (recorded(sqlite_uri, tmp_path / name, name) for name in ("one", "other"))
    odd = tmp_path / events_name(0)
    odd.write_text(line_of(at_step(10**23, "loss_spike", Severity.CRITICAL, "A loss spike.")))
    MlflowClient(tracking_uri=sqlite_uri).log_artifact(first, str(odd), EVENTS_FOLDER)
    comparison = compare([first, other], tracking_uri=sqlite_uri)
    assert len(comparison.runs) == 2
    assert "could not be compared step by step: unexpected OverflowError" in comparison.notes[0]


def test_two_logs_without_layers_are_still_compared() -> None:
    write_log(Path("one.jsonl"), falling())
    write_log(Path("other.jsonl"), falling(1))
    comparison = compare(["one.jsonl", "other.jsonl", "gone.jsonl"])
    assert comparison.layers == ()
    assert comparison.first_difference is not None  # of the two that could be read
    assert "neither run" in comparison.notes[0]
    assert len(comparison.unread) == 1


def test_the_same_is_drawn_as_a_figure(sqlite_uri: str, tmp_path: Path) -> None:
    wild = recorded(sqlite_uri, tmp_path / "wild", "wild", explodes=250)
    calm = recorded(sqlite_uri, tmp_path / "calm", "calm", heads=False)
    figure = compare_layers(calm, wild, tracking_uri=sqlite_uri)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["calm", "wild"]
    with pytest.raises(SettingsError, match=r"calm has no attention entropy by head.*Both have grad_norm"):
        compare_layers(calm, wild, "attention_entropy", tracking_uri=sqlite_uri)
    with pytest.raises(SettingsError, match=r"^quantity must be .grad_norm., "):
        compare_layers(calm, wild, "loss", tracking_uri=sqlite_uri)
    with pytest.raises(SettingsError, match="could not be read"):
        compare_layers(calm, "0123456789abcdef" * 2, tracking_uri=sqlite_uri)
