"""Runs in a tracking store, logged as any script logs them."""

from __future__ import annotations

from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.entities import Metric, Param


def store_run(
    uri: str, losses: Iterable[float], *, experiment: str = "0", status: str = "FINISHED", **params: object
) -> str:
    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run(experiment, run_name=str(params.get("name", "a-run"))).info.run_id)
    metrics = [Metric("train_loss", float(loss), 1_000 * step, step) for step, loss in enumerate(losses)]
    client.log_batch(run_id, metrics, [Param(key, str(value)) for key, value in params.items() if key != "name"])
    if status != "RUNNING":
        client.set_terminated(run_id, status)
    return run_id
