import random
import time
from collections import Counter

import pytest
from courier.staging import Training, kill, reading
from findings import at_step
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.analysis.load import load_run
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing

KILLS = 20


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_courier_killed_at_twenty_random_moments_delivers_everything_once(tmp_path, sqlite_uri):
    training = Training(tmp_path / ".mlflow-stability", sqlite_uri)
    moments = random.Random(4711)
    step = 0
    for _ in range(KILLS):
        courier = training.start_courier()
        killed_at = time.monotonic() + moments.uniform(0.0, 3.5)  # it needs two seconds to start
        while time.monotonic() < killed_at:
            step += 1
            training.train(step, step, pause=0.002)
            if step % 500 == 0:
                training.journal.append(at_step(step, "loss_spike", Severity.WARNING, f"at {step}"))
        kill(courier)
    training.end(Closing("finished", "", step, time.time()))
    last = training.start_courier()
    wait_until(lambda: last.poll() is not None)
    assert last.returncode == 0
    assert not (tmp_path / ".mlflow-stability").exists()

    client = MlflowClient(sqlite_uri)
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["stability.ended"] == "finished"
    assert run.data.tags["mlflow.stability.last_step"] == str(step)

    table = load_run(run.info.run_id, sqlite_uri, layout="long")
    expected = [value for number in range(1, step + 1) for value in reading(number).values]
    assert table["value"].tolist() == expected

    points = Counter(point.step for point in client.get_metric_history(run.info.run_id, "stability/loss"))
    assert set(points.values()) == {1}
    assert {1, *range(10, step + 1, 10), step} == set(points)

    events = [
        record for _, record in RunReader(run.info.run_id, sqlite_uri).event_lines() if isinstance(record, Finding)
    ]
    assert [event.step for event in events if event.kind == "loss_spike"] == list(range(500, step + 1, 500))
    print(f"{step} steps, {len(table)} values, {KILLS} kills")
