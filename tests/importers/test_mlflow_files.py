from __future__ import annotations

import math
from pathlib import Path

import pytest
from importers.reading import curve, metric, steps

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.open_log import read
from mlflow_stability.vocabulary.run import RunHistory

RUN = "b550c5a1163645c2b8c96c9feca6b742"


def write_run(folder: Path, metrics: dict[str, str], status: str = "3", stage: str = "active") -> Path:
    for name in ("params", "tags", "metrics"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    meta = f"artifact_uri: /gone/artifacts\nlifecycle_stage: {stage}\nrun_id: {folder.name}\n"
    meta += f"run_name: 'brave owl'\nstatus: {status}\n"
    (folder / "meta.yaml").write_text(meta)
    (folder / "params" / "lr").write_text("0.1")
    (folder / "tags" / "mlflow.note").write_text("two\nlines")
    for name, content in metrics.items():
        file = folder / "metrics" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def lines(values: list[tuple[float, int]], begin: int = 1_600_000_000_000) -> str:
    return "".join(f"{begin + n * 1000} {value} {step}\n" for n, (value, step) in enumerate(values))


LOSS = lines([(3.0, 1), (2.0, 2), (1.5, 3)])


def only_run(path: Path) -> RunHistory:
    (record,) = read(path)
    return record


def test_a_run_is_read_with_its_names_and_words(tmp_path: Path) -> None:
    run = only_run(write_run(tmp_path / RUN, {"loss": LOSS, "train/decode.loss_seg": LOSS, "Discriminator loss": LOSS}))
    assert (run.format, run.name, run.outcome) == ("mlflow_files", "brave owl", "finished")
    assert {entry.name for entry in run.metrics} == {"loss", "train/decode.loss_seg", "Discriminator loss"}
    assert curve(run, "train/decode.loss_seg") == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert (run.params, run.tags["mlflow.note"]) == ({"lr": "0.1"}, "two\nlines")
    assert metric(run, "loss").series.times.tolist() == [1_600_000_000.0, 1_600_000_001.0, 1_600_000_002.0]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("1", ""),
        ("RUNNING", ""),
        ("3", "finished"),
        ("FINISHED", "finished"),
        ("4", "crashed"),
        ("5", "killed"),
        ("", ""),
    ],
)
def test_a_status_is_a_number_or_a_word_and_running_for_ever_is_unknown(
    tmp_path: Path, status: str, outcome: str
) -> None:
    assert only_run(write_run(tmp_path / RUN, {"loss": LOSS}, status)).outcome == outcome


def test_points_that_all_have_step_0_are_numbered_in_the_order_of_time(tmp_path: Path) -> None:
    shuffled = "1600000003000 1.0 0\n1600000001000 3.0 0\n1600000002000 2.0 0\n1600000004000 0.5 0\n"
    run = only_run(write_run(tmp_path / RUN, {"train_loss": shuffled}))
    assert run.ordinal_steps
    assert curve(run, "train_loss") == [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.5)]
    assert "every step is 0" in run.notes[0].lower()


def test_one_metric_without_steps_among_others_with_steps_is_numbered_alone(tmp_path: Path) -> None:
    run = only_run(
        write_run(
            tmp_path / RUN,
            {"loss": lines([(n, 0) for n in range(50)]), "test_acc": lines([(0.5, n * 500) for n in range(5)])},
        )
    )
    assert steps(run, "loss") == list(range(50))


def test_not_a_number_infinity_and_half_a_last_line_are_read_as_they_are(tmp_path: Path) -> None:
    run = only_run(
        write_run(tmp_path / RUN, {"loss": "1600000000000 nan 1\n1600000001000 inf 2\n1600000002000 2.5 3\n16000000"})
    )
    values = [value for _, value in curve(run, "loss")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, 2.5]


def test_points_of_old_mlflow_without_steps_are_read(tmp_path: Path) -> None:
    run = only_run(
        write_run(tmp_path / RUN, {"loss": "1600000000 3.0\n1600000001 2.0\n1600000002 1.0\n1600000003 0.5\n"})
    )
    assert curve(run, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.5)]


def test_the_same_quantity_logged_per_step_and_per_epoch_counts_once(tmp_path: Path) -> None:
    run = only_run(write_run(tmp_path / RUN, {"train_loss_step": LOSS, "train_loss_epoch": LOSS, "valid_loss": LOSS}))
    assert metric(run, "train_loss_epoch").meaning.duplicate_of == "train_loss_step"
    assert [item.name for item in run.of("loss") if not item.meaning.duplicate_of] == ["train_loss_step"]


def test_a_whole_store_gives_every_run_that_was_not_deleted(tmp_path: Path) -> None:
    store = tmp_path / "moved" / "mlruns"
    (store / "0").mkdir(parents=True)
    (store / "0" / "meta.yaml").write_text("experiment_id: '0'\nname: Default\n")
    write_run(store / "0" / ("a" * 32), {"loss": LOSS})
    write_run(store / "0" / ("b" * 32), {"loss": LOSS})
    write_run(store / "0" / ("c" * 32), {"loss": LOSS}, stage="deleted")
    trashed = write_run(store / ".trash" / "1" / ("d" * 32), {"loss": LOSS})
    for above in (store, store / "0", tmp_path):
        runs = read(above)
        assert [Path(run.source).name[0] for run in runs] == ["a", "b"]
        assert "A deleted run was left out" in runs[0].notes[-1]
    assert only_run(trashed).source == str(trashed)
    assert len(read(store / ".trash")) == 1


def test_where_every_run_was_deleted_the_deleted_ones_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / ("c" * 32), {"loss": LOSS}, stage="deleted")
    assert len(read(tmp_path)) == 1


def test_a_run_without_a_curve_is_a_run_all_the_same(tmp_path: Path) -> None:
    assert len(only_run(write_run(tmp_path / RUN, {"accuracy": lines([(0.9, 0)])})).metrics) == 1


def test_a_run_without_any_metric_says_that_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError, match="no metric"):
        read(write_run(tmp_path / RUN, {}))


def test_a_run_of_ours_says_that_its_metrics_are_thinned_and_how_it_ended(tmp_path: Path) -> None:
    folder = write_run(tmp_path / RUN, {"stability/loss": LOSS, "stability/grad_norm_by_layer/a.b": LOSS})
    (folder / "tags" / "stability.outcome").write_text("out_of_memory")
    run = only_run(folder)
    assert (run.complete, run.outcome) == (False, "out_of_memory")
    assert metric(run, "stability/grad_norm_by_layer/a.b").meaning.place == "a.b"


def test_a_folder_within_a_run_is_that_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / RUN, {"loss": LOSS})
    assert only_run(folder / "metrics").source == str(folder / "metrics")


@pytest.mark.parametrize(("meta", "expected"), [(None, "is missing"), ("\x00: [", "cannot be understood")])
def test_the_metrics_of_a_run_without_a_readable_meta_are_read(tmp_path: Path, meta: str | None, expected: str) -> None:
    folder = tmp_path / "mlruns" / "0" / "abc"
    (folder / "metrics").mkdir(parents=True)
    lines = "".join(f"170000000000{n} {1 / (n + 1)} {n}\n" for n in range(5))
    (folder / "metrics" / "loss").write_text(lines)
    if meta is not None:
        (folder / "meta.yaml").write_text(meta)
    for place in (tmp_path / "mlruns", folder, folder / "metrics"):
        (run,) = read(place)
        assert (run.name, run.format) == ("abc", "mlflow_files")
        assert f"meta.yaml {expected}" in run.notes[0]


def test_a_folder_called_metrics_is_not_yet_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "train.csv").write_text("step,loss\n1,2\n2,1\n")
    (run,) = read(tmp_path)
    assert run.format == "progress_csv"
