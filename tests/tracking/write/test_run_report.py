from __future__ import annotations

from mlflow import MlflowClient

from mlflow_stability.tracking.run_files import log_comparison


def test_a_comparison_goes_into_the_experiment_of_a_name_or_an_id_and_into_a_new_one_of_a_name_of_digits(
    sqlite_uri: str,
) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    experiment = client.create_experiment("sweep")
    for asked, id_ in (("sweep", experiment), (experiment, experiment)):
        run = client.get_run(log_comparison(asked, sqlite_uri, {"comparison.json": "{}"}, "two runs"))
        assert (run.info.experiment_id, run.info.status) == (id_, "FINISHED")
    for name in ("2024", "20241123201530000000000"):
        made = [client.get_run(log_comparison(name, sqlite_uri, {}, "two runs")).info.experiment_id for _ in range(2)]
        assert made == [client.get_experiment_by_name(name).experiment_id] * 2
