"""Facts as parameters of a run in a real store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.run_writer import LONGEST_PARAM, RunWriter, cut


@pytest.fixture
def client(sqlite_uri: str) -> MlflowClient:
    return MlflowClient(sqlite_uri)


@pytest.fixture
def run_id(client: MlflowClient) -> str:
    return str(client.create_run("0").info.run_id)


def params_of(client: MlflowClient, run_id: str) -> dict[str, str]:
    return dict(client.get_run(run_id).data.params)


def our_tags_of(client: MlflowClient, run_id: str) -> dict[str, str]:
    return {key: value for key, value in client.get_run(run_id).data.tags.items() if key.startswith("stability.")}


def test_facts_become_parameters(client: MlflowClient, run_id: str) -> None:
    facts = {"learning_rate": "0.1", "git.diff": " a | 2 +-\n b | 1 +"}
    RunWriter(client, run_id).params(0).write(facts)
    assert params_of(client, run_id) == {f"stability.{key}": value for key, value in facts.items()}


def test_more_facts_than_a_request_takes_arrive(client: MlflowClient, run_id: str) -> None:
    RunWriter(client, run_id).params(0).write({f"group_{number}.eps": str(number) for number in range(250)})
    assert len(params_of(client, run_id)) == 250


def test_a_long_value_is_cut_in_its_middle_and_says_how_long_it_was(client: MlflowClient, run_id: str) -> None:
    long = "begin" + "ä" * 12_335 + "end!!"
    params = RunWriter(client, run_id).params(0)
    params.write({"argv": long})
    there = params_of(client, run_id)["stability.argv"]
    assert len(there) == LONGEST_PARAM
    assert there.startswith("beginä")
    assert there.endswith("äend!!")
    assert "…(12,345 characters)…" in there
    params.write({"argv": long})
    assert our_tags_of(client, run_id) == {}


def test_existing_parameters_stay_and_a_different_value_goes_into_a_tag(client: MlflowClient, run_id: str) -> None:
    client.log_param(run_id, "stability.optimizer", "mine")
    RunWriter(client, run_id).params(0).write({"optimizer": "AdamW", "seed": "1"})
    params = RunWriter(client, run_id).params(1)
    params.write({"seed": "2", "optimizer": "mine", "python": "3.12"})
    assert params_of(client, run_id) == {
        "stability.optimizer": "mine",
        "stability.seed": "1",
        "stability.python": "3.12",
    }
    assert our_tags_of(client, run_id) == {
        "stability.changed_settings": "recording 1: optimizer AdamW (was mine)\nrecording 2: seed 2 (was 1)",
    }
    assert params.refused == {}


def test_what_changed_is_one_tag_however_much_it_is_and_however_often_it_is_sent(
    client: MlflowClient, run_id: str
) -> None:
    RunWriter(client, run_id).params(0).write({f"group_{number}.eps": "a" for number in range(400)})
    params = RunWriter(client, run_id).params(1)
    for _ in range(2):
        params.write({"group_0.eps": "b\n" * 100})
        params.write({f"group_{number}.eps": "b" for number in range(1, 400)})
    (result,) = our_tags_of(client, run_id).values()
    assert result.startswith("recording 2: group_0.eps b b b")
    assert len(result.splitlines()) == 1
    assert len(result) <= 5000


class Overtaken(MlflowClient):
    """A client beside which another process writes, between what we read and what we write."""

    theirs = True

    def log_batch(self, run_id: str, *args: object, **kwargs: object) -> object:
        if self.theirs:
            self.theirs = False
            MlflowClient(self.tracking_uri).log_param(run_id, "stability.seed", "theirs")
        return super().log_batch(run_id, *args, **kwargs)  # type: ignore[arg-type]


def test_a_parameter_that_another_writer_set_first_is_no_error(
    sqlite_uri: str, client: MlflowClient, run_id: str
) -> None:
    params = RunWriter(Overtaken(sqlite_uri), run_id).params(0)
    params.write({"python": "3.12", "seed": "ours", "torch": "2"})
    assert params_of(client, run_id) == {
        "stability.python": "3.12",
        "stability.seed": "theirs",
        "stability.torch": "2",
    }
    assert our_tags_of(client, run_id) == {"stability.changed_settings": "recording 1: seed ours (was theirs)"}
    assert params.refused == {}


def test_a_name_that_no_store_takes_is_made_to_fit(client: MlflowClient, run_id: str) -> None:
    params = RunWriter(client, run_id).params(0)
    params.write({"my[odd]=name": "1", "x" * 300: "2", "../up": "3"})
    assert sorted(params_of(client, run_id).values()) == ["1", "2", "3"]
    assert params.refused == {}


class OldServer(MlflowClient):
    """A client of a server that takes parameters of 500 characters, as they did before MLflow 2.8, and no colour."""

    def log_batch(self, run_id: str, *args: object, **kwargs: object) -> object:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

        for point in kwargs.get("params", ()):  # type: ignore[attr-defined]
            if len(point.value) > 500 or point.key.endswith("colour"):
                raise MlflowException("no", error_code=INVALID_PARAMETER_VALUE)
        return super().log_batch(run_id, *args, **kwargs)  # type: ignore[arg-type]


def test_an_older_server_gets_shorter_values_and_a_refused_value_blocks_no_other(
    sqlite_uri: str, client: MlflowClient, run_id: str
) -> None:
    params = RunWriter(OldServer(sqlite_uri), run_id).params(0)
    for _ in range(2):
        params.write({"colour": "red", "argv": "a" * 700, "seed": "1"})
    there = params_of(client, run_id)
    assert there.keys() == {"stability.argv", "stability.seed"}
    assert len(there["stability.argv"]) == 500
    assert list(params.refused) == ["stability.colour"]
    assert our_tags_of(client, run_id) == {}


def test_a_missing_run_and_an_unreachable_server_are_different_errors(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunNotFoundError):
        RunWriter(client, "0" * 32).params(0).write({"seed": "1"})
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError):
        RunWriter(MlflowClient("http://127.0.0.1:9"), "ab12").params(0).write({"seed": "1"})


@given(st.text(max_size=300), st.integers(60, 200))
def test_a_text_that_was_cut_fits_and_keeps_both_ends(text: str, longest: int) -> None:
    short = cut(text, longest)
    assert len(short) == min(len(text), longest)
    if len(text) > longest:
        assert text.startswith(short.partition(" …(")[0])
        assert short[-10:] == text[-10:]
