"""One MLflow server on PostgreSQL and S3 takes many trainings at once, and gives back what they recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from servers.mlflow_server import mlflow_server
from servers.object_store import BUCKET, ObjectStore, object_store
from servers.postgres import postgres, why_not
from stores.train import CHECKPOINTS_KEPT
from stores.trainings import Ended, must_have_arrived_once, run_trainings, runs_of

import mlflow_stability
from mlflow_stability.tracking.read.run_search import runs_of_experiment
from mlflow_stability.tracking.run_files import RunCheckpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

TRAININGS, STEPS = 2, 200
EXPERIMENTS = ("Default", "direct")
"""The server writes the artifacts of the first to S3 itself; clients write those of the second there."""


@dataclass(frozen=True)
class Site:
    """A tracking server, and the S3 store behind it."""

    url: str
    buckets: ObjectStore


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with (
        object_store(folder) as buckets,
        postgres() as database,
        mlflow_server(folder, database, f"s3://{BUCKET}/Default", environment=buckets.environment) as url,
    ):
        MlflowClient(tracking_uri=url).create_experiment("direct", f"s3://{BUCKET}/direct")
        yield Site(url, buckets)


@pytest.fixture(scope="module")
def trainings(site: Site, tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """All of them at once, half of them in each experiment."""
    environments = [
        {"MLFLOW_TRACKING_URI": site.url, "MLFLOW_EXPERIMENT_NAME": name, **site.buckets.environment}
        for name in EXPERIMENTS
    ]
    return run_trainings(tmp_path_factory.mktemp("trainings"), environments * TRAININGS, STEPS)


@pytest.fixture(autouse=True)
def credentials(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in site.buckets.environment.items():
        monkeypatch.setenv(name, value)


def test_no_training_fails(trainings: list[Ended]) -> None:
    assert [training.code for training in trainings] == [0] * 2 * TRAININGS, trainings[0].errors


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_nothing_is_lost_and_nothing_arrives_twice(experiment: str, site: Site, trainings: list[Ended]) -> None:
    runs = runs_of(site.url, experiment)
    assert len(runs) == TRAININGS
    for run in runs:
        must_have_arrived_once(run, site.url, STEPS)
        stored = [key for key in site.buckets.keys(experiment) if run.info.run_id in key]
        assert sum(key.endswith("stability/report.html") for key in stored) == 1
        assert 1 <= sum(key.endswith("state.pt") for key in stored) <= CHECKPOINTS_KEPT


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_runs_are_compared_and_diagnosed(experiment: str, site: Site, trainings: list[Ended]) -> None:
    compared = mlflow_stability.compare(experiment=experiment, tracking_uri=site.url)
    assert (len(compared.runs), compared.unread) == (TRAININGS, ())
    run = runs_of(site.url, experiment)[0]
    assert mlflow_stability.diagnose(run.info.run_id, tracking_uri=site.url).steps == (1, STEPS)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_removed_checkpoints_are_gone_from_s3(experiment: str, site: Site, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=site.url)
    result = client.get_experiment_by_name(experiment)
    assert result is not None
    run = client.create_run(result.experiment_id, run_name="retention").info.run_id
    checkpoints = RunCheckpoints(client, run)
    for step in (500, 1000):
        folder = tmp_path / f"rollback_ckpt-{step:06d}-1.0000"
        folder.mkdir()
        (folder / "state.pt").write_bytes(bytes(100))
        (folder / "meta.json").write_text("{}")
        checkpoints.upload(folder)
    checkpoints.remove("rollback_ckpt-000500-1.0000")

    assert checkpoints.names() == ["rollback_ckpt-001000-1.0000"]
    stored = [key for key in site.buckets.keys(experiment) if run in key]
    assert sorted(key.rpartition("/")[2] for key in stored) == ["meta.json", "state.pt"]
    client.delete_run(run)


def test_the_runs_of_an_experiment_are_found_over_all_pages(site: Site) -> None:
    client = MlflowClient(tracking_uri=site.url)
    experiment = client.create_experiment("pages")
    made = {client.create_run(experiment).info.run_id for _ in range(60)}

    assert {head.run_id for head in runs_of_experiment("pages", tracking_uri=site.url)} == made
