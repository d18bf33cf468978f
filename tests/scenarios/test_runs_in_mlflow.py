"""Which run a step belongs to, looked up in the run itself."""

from __future__ import annotations

import mlflow
import pandas as pd
import pytest
import torch
from courier.staging import bookkeeping
from mlflow import MlflowClient
from mlflow.entities import Run
from scenarios.delivering import end, end_of_courier, watch, watch_with_courier
from scenarios.watching import batches, mse, tiny_model
from torch.optim import SGD

import mlflow_stability

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("blank_pictures")]


def train(steps: int, lr: float = 0.1) -> list[float]:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=lr)
    losses = []
    for batch in batches(steps):
        loss = mse(model, batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def runs_of(store: MlflowClient) -> list[Run]:
    """All runs, oldest first."""
    return list(store.search_runs(["0"], order_by=["attributes.start_time ASC"]))


def losses_of(run: Run | str) -> list[float]:
    record: pd.DataFrame = mlflow_stability.load_run(run if isinstance(run, str) else run.info.run_id)
    return list(record["loss"].dropna())


@pytest.mark.slow
def test_the_run_that_was_started_is_known_when_all_is_delivered(store: MlflowClient) -> None:
    session = watch_with_courier()
    train(5)
    end_of_courier(session)
    (run,) = runs_of(store)
    assert session.run_id == run.info.run_id


@pytest.mark.slow
def test_without_a_run_one_is_started_and_it_has_every_step(store: MlflowClient) -> None:
    watch(extra_tags={"team": "vision", "seed": 7})
    losses = train(25)
    end()
    (run,) = runs_of(store)
    assert losses_of(run) == pytest.approx(losses)
    assert run.data.tags["mlflow.autologging"] == "stability"
    assert (run.data.tags["team"], run.data.tags["seed"]) == ("vision", "7")
    assert run.info.status == "FINISHED"
    assert {point.step for point in store.get_metric_history(run.info.run_id, "stability/loss")} >= {1, 10, 20, 25}


@pytest.mark.slow
def test_consecutive_runs_each_have_their_own_training_from_step_one(store: MlflowClient) -> None:
    watch()
    expected = {}
    for lr in (0.1, 0.2, 0.3):
        with mlflow.start_run() as run:
            expected[run.info.run_id] = train(7, lr)
    end()
    assert {run.info.run_id for run in runs_of(store)} == set(expected)
    for run_id, losses in expected.items():
        assert losses_of(run_id) == pytest.approx(losses)
        assert "stability/learning_rate" in store.get_run(run_id).data.metrics
        assert not [name for name in store.get_run(run_id).data.metrics if "track_" in name or "optimizer_" in name]


@pytest.mark.slow
def test_a_nested_run_gets_its_steps_and_the_outer_one_goes_on(store: MlflowClient) -> None:
    watch()
    with mlflow.start_run() as outer:
        before = train(4)
        with mlflow.start_run(nested=True) as inner:
            inside = train(5)
        after = train(6)
    end()
    assert len(runs_of(store)) == 2
    assert losses_of(inner.info.run_id) == pytest.approx(inside)
    assert losses_of(outer.info.run_id) == pytest.approx(before + after)
    record = mlflow_stability.load_run(outer.info.run_id)
    assert list(record.index if record.index.name == "step" else record["step"]) == list(range(1, 11))
    assert not [name for name in store.get_run(outer.info.run_id).data.metrics if name.startswith("stability_2")]


@pytest.mark.slow
def test_a_training_that_is_watched_again_at_once_in_the_same_run_goes_on_behind_its_last_step(
    store: MlflowClient,
) -> None:
    with mlflow.start_run() as run:
        first = watch_with_courier(log_every_n_steps=1)
        before = train(30)
        mlflow_stability.autolog(disable=True)
        second = watch_with_courier(log_every_n_steps=1)
        after = train(25)
        mlflow_stability.autolog(disable=True)
        assert second.wait(120)
        assert first.wait(120)
    record = mlflow_stability.load_run(run.info.run_id)
    assert record["step"].tolist() == list(range(1, 56))
    assert record["recording"].tolist() == [0] * 30 + [1] * 25
    assert record["loss"].tolist() == pytest.approx(before + after)
    last = store.get_metric_history(run.info.run_id, "stability/loss")[-1]
    assert (last.step, last.value) == (55, pytest.approx(after[-1]))
    assert not [name for name in store.get_run(run.info.run_id).data.metrics if name.startswith("stability_2")]


@pytest.mark.slow
def test_a_metric_of_the_script_goes_into_our_run_instead_of_a_second_one(store: MlflowClient) -> None:
    session = watch_with_courier()
    train(3)
    mlflow.log_metric("accuracy", 0.5)
    losses = train(3)
    mlflow.log_metric("accuracy", 0.75, step=2)
    mlflow.end_run()
    end_of_courier(session)
    (run,) = runs_of(store)
    assert run.data.metrics["accuracy"] == 0.75
    assert len(losses) == 3
    assert run.data.tags["mlflow.stability.last_step"] == "6"


@pytest.mark.slow
def test_the_run_that_the_environment_names_is_recorded_into(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = store.create_run("0")
    monkeypatch.setenv("MLFLOW_RUN_ID", named.info.run_id)
    watch()
    losses = train(5)
    end()
    (run,) = runs_of(store)
    assert run.info.run_id == named.info.run_id
    assert losses_of(run) == pytest.approx(losses)


@pytest.mark.slow
def test_exclusive_leaves_the_scripts_run_alone(store: MlflowClient) -> None:
    watch(exclusive=True)
    with mlflow.start_run() as theirs:
        losses = train(5)
        mlflow.log_metric("accuracy", 0.5)
    end()
    ours = next(run for run in runs_of(store) if run.info.run_id != theirs.info.run_id)
    assert losses_of(ours) == pytest.approx(losses)
    assert set(store.get_run(theirs.info.run_id).data.metrics) == {"accuracy"}
    assert not [tag for tag in store.get_run(theirs.info.run_id).data.tags if tag.startswith("stability.")]


@pytest.mark.slow
def test_what_the_detectors_found_reaches_the_run(store: MlflowClient) -> None:
    watch(silent=True)
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches(6), start=1):
        loss = mse(model, batch) * (float("nan") if number == 4 else 1.0)
        loss.backward()
        if number == 4:
            for parameter in model.parameters():  # the script saves its weights itself
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    end()
    (run,) = runs_of(store)
    assert run.data.tags["stability.findings"].startswith("1 critical")
    assert "nan_detected" in bookkeeping(run.info.run_id)["last_finding"]
    assert (
        pd.isna(mlflow_stability.load_run(run.info.run_id, layout="long").query("quantity == 'loss'")["value"]).sum()
        == 1
    )


@pytest.mark.slow
def test_the_same_script_line_again_does_not_start_a_second_run(store: MlflowClient) -> None:
    session = watch()
    losses = train(3)
    assert watch(log_every_n_steps=5) is session
    losses += train(3)
    end()
    assert len(runs_of(store)) == 1


@pytest.mark.slow
def test_a_script_that_takes_warnings_for_errors_has_its_run_delivered(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    session = watch_with_courier()
    losses = train(5)
    end_of_courier(session)
    (run,) = runs_of(store)
    assert losses_of(run) == pytest.approx(losses)
