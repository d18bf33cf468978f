"""Calls that cannot be meant: each is answered by a sentence, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from analysis.logs import falling, write_log
from torch.nn import Linear
from torch.optim import SGD

import mlflow_stability
from mlflow_stability.errors import RunNotFoundError, SettingsError, StabilityError, UnreadableLogError

NO_SUCH_RUN = "0123456789abcdef" * 2
FUNCTIONS = [name for name in mlflow_stability.__all__ if isinstance(getattr(mlflow_stability, name), FunctionType)]
READING: dict[str, Callable[[Any], Any]] = {
    "diagnose": mlflow_stability.diagnose,
    "diagnose_all": lambda item: list(mlflow_stability.diagnose_all(item)),
    "compare": mlflow_stability.compare,
    "load_run": mlflow_stability.load_run,
    "dashboard": mlflow_stability.dashboard,
    "attention_heatmap": mlflow_stability.attention_heatmap,
    "attention_entropy_plot": mlflow_stability.attention_entropy_plot,
    "compare_attention": lambda item: mlflow_stability.compare_attention(item, item),
    "compare_layers": lambda item: mlflow_stability.compare_layers(item, item),
}


@pytest.mark.parametrize("name", [function for function in FUNCTIONS if function not in ("attach", "current_session")])
def test_the_error_for_a_misspelt_argument_of_a_public_call_suggests_the_right_name(name: str) -> None:
    call = getattr(mlflow_stability, name)
    item = list(call.__wrapped__.__annotations__)[-2]
    with pytest.raises(SettingsError, match=rf"^{name}\(\) has no argument '.*'\. Did you mean '{item}'\?$"):
        call(**{f"{item[:-1]}": 1})


def test_the_error_for_a_misspelt_setting_of_attach_suggests_the_right_name() -> None:
    attached = mlflow_stability.attach(Linear(1, 1), extra_tag={})
    with pytest.raises(SettingsError) as raised, attached:
        pass
    assert str(raised.value) == "attach() has no argument 'extra_tag'. Did you mean 'extra_tags'?"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model": None, "optimizer": None}, "model must be a torch.nn.Module, or several; got None."),
        ({"model": Linear(1, 1), "optimizer": "sgd"}, "optimizer must be a torch.optim.Optimizer, or several; got 's"),
        ({"model": [], "optimizer": None}, "model must be a torch.nn.Module, or several; got [] (list)."),
        (
            {"model": Linear(1, 1), "optimizer": SGD(Linear(1, 1).parameters()), "which": "last"},
            "which must be 'last_good', 'best', 'newest' or the number of a step; got 'last' (str). Did you mean",
        ),
    ],
)
def test_the_error_for_an_object_that_cannot_be_restored_names_the_argument(
    given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        mlflow_stability.restore(**given)
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize("wrong", [None, 3, b"x", "", {}, 1.5])
@pytest.mark.parametrize("name", READING)
def test_the_error_for_an_invalid_run_id_names_the_argument(name: str, wrong: object) -> None:
    if name == "diagnose" and wrong is None:
        return  # it is the run that was recorded last
    if name in ("diagnose_all", "compare") and not (wrong is None or isinstance(wrong, str | bytes)):
        wrong = [wrong]
    text = r"^run_\w+ must be the id of an MLflow run.*; got .*\.$"
    with pytest.raises(SettingsError, match=text):
        READING[name](wrong)


@pytest.mark.parametrize("wrong", [3, b"x", ["sqlite:///mlflow.db"], True])
@pytest.mark.parametrize("name", READING)
def test_the_error_for_an_invalid_tracking_uri_names_the_argument(name: str, wrong: object) -> None:
    call = getattr(mlflow_stability, name)
    runs = (NO_SUCH_RUN,) * (2 if name in ("compare_attention", "compare_layers") else 1)
    with pytest.raises(SettingsError, match=r"^tracking_uri must be the address of an MLflow store.*; got .*\.$"):
        call(*runs, tracking_uri=wrong)


@pytest.mark.parametrize("source", ["x", NO_SUCH_RUN])
@pytest.mark.parametrize("name", READING)
def test_reading_a_missing_run_leaves_nothing_in_the_working_directory(name: str, source: str, tmp_path: Path) -> None:
    if name == "diagnose_all":
        (failure,) = READING[name](source)
        assert failure.source == source
    else:
        with pytest.raises(StabilityError):
            READING[name](source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", ["x", ["x"], ["x", "y"]])
def test_a_comparison_raises_when_no_run_can_be_read(asked: str | list[str]) -> None:
    with pytest.raises(RunNotFoundError, match="No such file, folder, run id or run name: 'x'") as raised:
        mlflow_stability.compare(asked)
    assert str(raised.value).startswith("None of the 2 runs could be read. ") is (len(asked) == 2)


def test_a_comparison_of_readable_and_unreadable_runs_names_the_unreadable_ones(tmp_path: Path) -> None:
    comparison = mlflow_stability.compare([write_log(tmp_path / "a.jsonl", falling()), "x"], remember=False)
    assert len(comparison.cards) == 1
    assert "'x'" in comparison.unread[0].error


def test_the_error_for_a_folder_without_logs_mentions_only_subfolders_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError) as raised:
        mlflow_stability.diagnose(tmp_path)
    assert str(raised.value).startswith(f"No training log in {str(tmp_path)!r}. Give the file itself")
    (tmp_path / "one").mkdir()
    with pytest.raises(UnreadableLogError, match=r"or in the folder below it\. Give"):
        mlflow_stability.diagnose(tmp_path)
    (tmp_path / "one" / "two").mkdir()
    with pytest.raises(UnreadableLogError, match=r"or in the 2 folders below it\. Give"):
        mlflow_stability.diagnose(tmp_path)
