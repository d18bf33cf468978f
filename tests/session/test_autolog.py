from __future__ import annotations

import atexit
import gc
import logging
import math
import os
import shutil
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from scenarios.watching import batches, mse, tiny_model
from torch import Tensor
from torch.optim import SGD
from torch.optim import optimizer as torch_optimizer

import mlflow_stability
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.sensitivity import scale_thresholds
from mlflow_stability.errors import SettingsError
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.kinds.catalog import default_detectors, read_detectors
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.kinds.loss.loss_spike import LossSpike, LossSpikeClassic
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.judging import FACTORS
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Note, Opening
from mlflow_stability.vocabulary.settings import Settings

NO_WAIT = mlflow_stability.Options(exit_wait=0)


@pytest.fixture(autouse=True)
def taken_off(tmp_path: Path) -> Iterator[None]:
    yield
    mlflow_stability.autolog(disable=True)
    shutil.rmtree(tmp_path / ".mlflow-stability", ignore_errors=True)  # or the end of all tests would deliver it


def train(steps: int = 3) -> list[float]:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches(steps):
        loss = mse(model, batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def session() -> Session:
    current = mlflow_stability.current_session()
    assert current is not None
    return current


def test_autolog_itself_takes_no_time_and_creates_nothing(tmp_path: Path) -> None:
    import mlflow_stability.session.autolog  # the import is not autolog's

    modules = set(sys.modules)
    gc.disable()  # a collection of all that the tests have made takes longer, and may be due at any moment
    try:
        began = time.thread_time()  # what other processes take of the machine is not ours
        mlflow_stability.autolog()
        took = time.thread_time() - began
    finally:
        gc.enable()
    assert took < 0.02
    assert list(tmp_path.iterdir()) == []
    assert set(sys.modules) == modules


def test_disable_restores_torch_and_sys_exactly() -> None:
    places = ((torch.autograd, "backward"), (torch.optim.Optimizer, "zero_grad"), (sys, "exit"), (sys, "excepthook"))
    before = [vars(owner)[name] for owner, name in places]
    mlflow_stability.autolog(strict=True)
    assert vars(torch.autograd)["backward"] is not before[0]
    mlflow_stability.autolog(disable=True)
    assert [vars(owner)[name] for owner, name in places] == before
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks
    assert mlflow_stability.current_session() is None


def test_disabling_what_was_never_on_does_nothing() -> None:
    mlflow_stability.autolog(disable=True)


def test_calling_again_reconfigures_and_hooks_nothing_twice() -> None:
    mlflow_stability.autolog(log_every_n_steps=10)
    first, backward = session(), torch.autograd.backward
    mlflow_stability.autolog(log_every_n_steps=3, silent=True, strict=True)
    assert session() is first
    assert first.settings.log_every_n_steps == 3
    assert torch.autograd.backward is backward
    assert len(torch_optimizer._global_optimizer_pre_hooks) == 1


@pytest.mark.parametrize(("value", "works"), [("1", False), ("true", False), ("0", True), ("", True)])
def test_the_environment_can_switch_it_off(monkeypatch: pytest.MonkeyPatch, value: str, works: bool) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_DISABLE", value)
    mlflow_stability.autolog()
    assert (mlflow_stability.current_session() is not None) == works


def test_attach_does_nothing_where_the_environment_switched_it_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_DISABLE", "1")
    with mlflow_stability.attach(tiny_model()) as watching:
        watching.step(1.0)
    assert watching.session is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log_every_n_steps": 0}, "log_every_n_steps must be a whole number, at least 1; got 0."),
        ({"detectors": ["loss_spik"]}, "There is no detector 'loss_spik'; did you mean loss_spike"),
        ({"detectors": [LossSpike]}, "detectors= takes names"),
        ({"silent": "no"}, "silent must be True or False; got 'no' (str)."),
        ({"disable": "no"}, "disable must be True or False; got 'no' (str)."),
        ({"rollback": "yes"}, "rollback must be True, False or a RollbackPolicy; got 'yes' (str)."),
        ({"rollback": None}, "rollback must be True, False or a RollbackPolicy; got None."),
        ({"options": {"exit_wait": 1}}, "options must be an Options object; got {'exit_wait': 1} (dict)."),
        (
            {"max_checkpoints": 5},
            "autolog() has no argument 'max_checkpoints'. It is a field of RollbackPolicy: autolog(rollback=",
        ),
        ({"rolback": True}, "autolog() has no argument 'rolback'. Did you mean 'rollback'?"),
    ],
)
def test_invalid_arguments_are_refused_with_the_rule(given: dict[str, float], expected: str) -> None:
    with pytest.raises(SettingsError) as refused:
        mlflow_stability.autolog(**given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(expected)
    assert mlflow_stability.current_session() is None


@pytest.mark.parametrize("name", [*(field.name for field in fields(Settings)), "options", "best_by", "rule"])
def test_attach_refuses_what_autolog_refuses_in_the_same_words(name: str) -> None:
    wrong = 1j  # of no setting
    with pytest.raises(SettingsError) as refused:
        mlflow_stability.autolog(**{name: wrong})  # type: ignore[arg-type]
    attached = mlflow_stability.attach(tiny_model(), **{name: wrong})
    with pytest.raises(SettingsError) as refused_too, attached:
        pass
    assert name in str(refused.value)
    assert str(refused.value).replace("autolog(", "attach(") == str(refused_too.value)
    assert mlflow_stability.current_session() is None


@pytest.mark.slow
def test_attach_takes_a_folder_and_a_name_as_autolog_does(tmp_path: Path, sqlite_uri: str) -> None:
    with mlflow_stability.attach(
        tiny_model(), representations="x", options=replace(NO_WAIT, journal_dir="j")
    ) as watching:
        watching.step(1.0)
    assert (tmp_path / "j").is_dir()


def test_without_a_journal_folder_there_is_one_warning_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    bare = train()
    mlflow_stability.autolog(options=mlflow_stability.Options(journal_dir=tmp_path / "file" / "journal", exit_wait=0))
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        assert train() == bare
    (record,) = caplog.records
    assert "Pass another folder with autolog(options=Options(journal_dir=...))" in record.getMessage()


@pytest.mark.parametrize("silent", [False, True])
def test_a_courier_that_fails_to_start_stops_only_the_delivery_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python here"))
    mlflow_stability.autolog(silent=silent, options=NO_WAIT)
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        losses = train()
    recording = session().recording
    assert recording is not None
    mlflow_stability.autolog(disable=True)
    (record,) = caplog.records
    assert "The courier process could not be started" in record.getMessage()
    kept = [item for item in read_journal(recording.folder / "journal") if isinstance(item, StepReading)]
    assert [reading.values[reading.signals.index(Signal("loss"))] for reading in kept] == pytest.approx(losses)


def without_a_courier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")


def records_of(own: Session) -> list[object]:
    recording = own.recording
    assert recording is not None
    mlflow_stability.autolog(disable=True)
    return list(read_journal(recording.folder / "journal"))


def test_a_loop_attached_by_hand_is_recorded_while_the_hooks_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    mlflow_stability.autolog(silent=True, options=NO_WAIT)
    outer = session()
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    with mlflow_stability.attach(model, optimizer, strict=True, silent=True, options=NO_WAIT) as watching:
        assert session() is watching.session
        for batch in batches(4):
            loss = mse(model, batch)
            loss.backward()
            losses.append(loss.item())
            watching.step(loss)
            optimizer.step()
            optimizer.zero_grad()
        assert watching.session is not None
        recording = watching.session.recording
    assert session() is outer
    assert outer.step == 0
    assert recording is not None
    records = read_journal(recording.folder / "journal")
    readings = [record for record in records if isinstance(record, StepReading)]
    assert [reading.values[reading.signals.index(Signal("loss"))] for reading in readings] == pytest.approx(losses)
    assert all({Signal("grad_norm"), Signal("learning_rate")} <= set(reading.signals) for reading in readings)
    assert isinstance(records[-1], Closing)
    assert records[-1].outcome == "finished"


def test_gradients_of_torch_func_and_their_learning_rate_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    model = tiny_model()
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    batch = next(iter(batches(1)))

    def loss_of(weights: dict[str, Tensor]) -> Tensor:
        return mse(lambda inputs: torch.func.functional_call(model, weights, inputs), batch)  # type: ignore[arg-type]

    with mlflow_stability.attach(model, strict=True, silent=True, options=NO_WAIT) as watching:
        gradients, loss = torch.func.grad_and_value(loss_of)(weights)
        watching.step(loss, gradients, learning_rate=0.1)
        assert watching.session is not None
        recording = watching.session.recording
    assert recording is not None
    (reading,) = [item for item in read_journal(recording.folder / "journal") if isinstance(item, StepReading)]
    values = dict(zip(map(str, reading.signals), reading.values, strict=True))
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
    assert values["loss"] == pytest.approx(float(loss))
    assert values["grad_norm"] == pytest.approx(norm)
    assert values["learning_rate"] == 0.1


def test_attach_takes_settings_as_autolog_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    model = tiny_model()
    given = {"representations": "0", "stop_on": (), "detectors": ["loss_spike"]}
    options = replace(NO_WAIT, journal_dir="j")
    with mlflow_stability.attach(model, strict=True, silent=True, options=options, **given) as watching:
        mse(model, next(iter(batches(1)))).backward()
        watching.step()
    assert watching.session is not None
    assert watching.session.settings.representations == ("0",)
    assert list((tmp_path / "j").glob("*/*/journal"))


def test_an_attached_loop_leaves_nothing_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    registered: list[object] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    model = tiny_model()
    sessions = []
    for _ in range(5):
        with mlflow_stability.attach(model, strict=True, silent=True, options=NO_WAIT) as watching:
            mse(model, next(iter(batches(1)))).backward()
            watching.step()
        assert watching.session is not None
        sessions.append(weakref.ref(watching.session))
        del watching
    gc.collect()
    assert [function() for function in sessions] == [None] * 5
    assert len(set(map(id, (item.__self__ for item in registered)))) == 1  # type: ignore[attr-defined]


def test_an_attached_loop_that_raises_says_so_and_gives_the_hooks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    model = tiny_model()
    recordings = []

    def loop() -> None:
        with mlflow_stability.attach(model, silent=True, options=NO_WAIT) as watching:
            watching.step(1.5)
            assert watching.session is not None
            recordings.append(watching.session.recording)
            raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        loop()
    (recording,) = recordings
    assert recording is not None
    closing = read_journal(recording.folder / "journal")[-1]
    assert isinstance(closing, Closing)
    assert (closing.outcome, closing.detail) == ("crashed", "ValueError: no data")
    assert mlflow_stability.current_session() is None


def test_clipping_that_comes_and_goes_is_noted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    mlflow_stability.autolog(silent=True, options=NO_WAIT)
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches(10)):
        mse(model, batch).backward()
        if number % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    notes = [record for record in records_of(session()) if isinstance(record, Note)]
    assert [(note.key, note.value) for note in notes] == [
        ("grad_norm", "no clipping seen"),
        ("grad_norm", "no clipping seen, before clipping"),
    ]


@dataclass(frozen=True)
class Stumbles:
    """Fails at the second step."""

    kind: ClassVar[str] = "stumble"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("loss",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False

    def begin(self) -> int:
        return 0

    def step(self, state: int, point: Point) -> tuple[int, None]:
        if state == 1:
            raise RuntimeError("stumbled")
        return state + 1, None


def test_detectors_that_fail_leave_the_record_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_a_courier(monkeypatch)
    mlflow_stability.autolog(silent=False, detectors=["nan_detected", Stumbles()], options=NO_WAIT)
    own = session()
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        train(7)
        assert own.recording is not None
        own.recording.settle()
    assert list(own.parts_off) == ["detectors"]
    assert [
        record.getMessage().split(" failed")[0] for record in caplog.records if "Part '" in record.getMessage()
    ] == ["Part 'detectors' of mlflow-stability"]
    assert sum(isinstance(record, StepReading) for record in records_of(own)) == 7


def test_a_forked_child_that_trains_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    mlflow_stability.autolog(silent=True, options=NO_WAIT)
    train(4)
    own, before = session(), session().step
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        train(3)
        os._exit(0 if own.step == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(isinstance(record, StepReading) for record in records_of(own)) == 4


def test_a_training_without_visible_steps_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    mlflow_stability.autolog(strict=True)
    model = tiny_model()
    (batch,) = batches(1)
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        for _ in range(450):
            mse(model, batch).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    (result,) = [record.getMessage() for record in caplog.records]
    assert "200 backward passes" in result
    assert "attach" in result


def test_the_journal_says_who_judged_with_which_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    policy = mlflow_stability.RollbackPolicy(max_rollbacks=0, divergence_threshold=1.5)
    mlflow_stability.autolog(
        strict=True, detectors=["nan_detected", "loss_spike:classic"], rollback=policy, options=NO_WAIT
    )
    train(2)
    opening = records_of(session())[0]
    assert isinstance(opening, Opening)
    judges = read_detectors(opening.detectors)
    assert [judge.kind for judge in judges] == ["nan_detected", "loss_spike", "divergence"]
    assert judges[-1] == DivergenceClassic(divergence_threshold=1.5, consecutive_steps=3)


def test_detectors_given_with_the_default_ones_replace_those_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    own = GradientExplosion(threshold=3, threshold_alone=True)
    classic = ["divergence:classic", LossSpikeClassic(deviations=4)]
    mlflow_stability.autolog(strict=True, detectors=["default", own, *classic], options=NO_WAIT)
    train(2)
    opening = records_of(session())[0]
    assert isinstance(opening, Opening)
    judges = read_detectors(opening.detectors)
    assert {own, LossSpikeClassic(deviations=4)} <= set(judges)
    assert [judge for judge in judges if judge.kind == "divergence"] == [DivergenceClassic()]
    assert len(judges) == len(default_detectors()) - 1  # two look for a divergence by default


def test_the_sensitivity_changes_detectors_by_name_but_not_those_with_given_thresholds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_a_courier(monkeypatch)
    own = GradientExplosion(threshold=7.0)
    mlflow_stability.autolog(strict=True, detectors=["loss_spike", own], sensitivity="high", options=NO_WAIT)
    train(2)
    opening = records_of(session())[0]
    assert isinstance(opening, Opening)
    assert read_detectors(opening.detectors) == (scale_thresholds(LossSpike(), FACTORS["high"]), own)


def test_a_preset_sets_intervals_and_thresholds_and_what_was_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_courier(monkeypatch)
    mlflow_stability.autolog(strict=True, preset="debugging", layers_every_n_steps=100, options=NO_WAIT)
    settings = session().settings
    assert (settings.log_every_n_steps, settings.layers_every_n_steps, settings.attention_every_n_steps) == (1, 100, 50)
    assert (settings.policy.divergence_threshold, settings.capture_batch, settings.rollback) == (1.2, "upload", False)
    mlflow_stability.autolog(strict=True, options=NO_WAIT)
    assert session().settings.log_every_n_steps == 10
