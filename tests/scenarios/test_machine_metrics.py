"""MLflow's own measurements of the machine, switched on by one word."""

from __future__ import annotations

import mlflow
import pytest
from mlflow import MlflowClient
from scenarios.delivering import end_of_courier, watch_with_courier
from scenarios.test_runs_in_mlflow import runs_of, train
from waiting import wait_until

from mlflow_stability import Options

pytestmark = [pytest.mark.usefixtures("blank_pictures"), pytest.mark.scenario, pytest.mark.slow]
MEASURED = {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"}


@pytest.fixture(autouse=True)
def every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "1")


def machine_keys(store: MlflowClient) -> set[str]:
    (run,) = runs_of(store)
    return {key for key in run.data.metrics if key.startswith("system/")}


def test_the_machine_is_measured_where_it_was_asked_for(store: MlflowClient) -> None:
    session = watch_with_courier(options=Options(system_metrics=True))
    train(5)

    def measured() -> bool:
        train(1)
        return bool(runs_of(store)) and machine_keys(store) >= MEASURED

    wait_until(measured, 120)
    end_of_courier(session)
    assert machine_keys(store) >= MEASURED


def test_the_machine_is_not_measured_unless_asked_for(store: MlflowClient) -> None:
    session = watch_with_courier()
    train(5)
    end_of_courier(session)
    assert not machine_keys(store)


def test_where_the_script_has_mlflow_measure_it_already_nothing_is_measured_twice(store: MlflowClient) -> None:
    with mlflow.start_run(log_system_metrics=True) as run:
        session = watch_with_courier(options=Options(system_metrics=True))
        train(5)
        recording = session.recording
        assert recording is not None
        assert not recording.opening.system_metrics
        assert recording.opening.run_id == run.info.run_id
    end_of_courier(session)
