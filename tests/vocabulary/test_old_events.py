"""Events recorded before there were facts are read with those that diagnoses ask for."""

from __future__ import annotations

import json
import math

import pytest

from mlflow_stability import Severity
from mlflow_stability.kinds.loss.divergence import DivergenceFacts, SizeFacts, SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.loss.loss_spike import SpikeFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.old_events import facts_of_old_event
from mlflow_stability.kinds.progress.overfitting import OverfittingFacts
from mlflow_stability.kinds.progress.plateau import PlateauFacts
from mlflow_stability.kinds.progress.repeated_data import NoNoiseFacts
from mlflow_stability.kinds.reported.autopilot import DataChangedFacts, EarlyStopFacts
from mlflow_stability.kinds.reported.broken_steps import (
    BatchFacts,
    BrokenBatchFacts,
    NanOriginFacts,
    NanSource,
    Rerun,
    SpikeBatchFacts,
    TensorFacts,
)
from mlflow_stability.kinds.reported.rollback import GaveUp, GiveUpFacts, RollbackFacts
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, LintFacts, Setting, SettingName, UnclearedFacts
from mlflow_stability.tracking.artifacts import line_of, read_line
from mlflow_stability.vocabulary.facts import Facts, OtherFacts
from mlflow_stability.vocabulary.result import Finding

CHANGED = "The weights of step 3 give 5.2: the data changed at about step 9."
DECAY = SettingName(Setting.GROUP_OPTION, "weight_decay", "group 0 of AdamW")
BATCH = TensorFacts("args[0]", (), "", -2.0, 3.0, None, nan=3)


def read_from_old_line(event: Finding) -> Facts:
    """The facts of an event whose line has none."""
    line = json.loads(line_of(event))
    del line["facts"]
    read = read_line(json.dumps(line))
    assert isinstance(read, Finding)
    return read.facts


@pytest.mark.parametrize(
    "facts",
    [
        EarlyStopFacts("loss<0.05", "loss is 0.04 (of 3)", before_step=True),
        EarlyStopFacts("val_loss plateau 5", "val_loss has not fallen below its best of 2 in 5 values"),
        GiveUpFacts(GaveUp.NO_ROLLBACK, "loss 9. 3 rollbacks did not help.", 290, 3, final=True),
        DataChangedFacts(CHANGED, 9, 1, 5.2, 0.3),
        DataChangedFacts(CHANGED, 9, 1, 5.2, 0.3, target=12),
        ConfigurationFacts(DECAY, "0.01", "0.1"),
        ConfigurationFacts(SettingName(Setting.CLIPPING_NORM), "1.0", "no"),
        ConfigurationFacts(SettingName(Setting.TRAINED_PARAMETERS), "12 of 12", "3 of 12"),
        ConfigurationFacts(SettingName(Setting.PARAMETER_GROUPS, owner="AdamW"), "1", "2"),
        ConfigurationFacts(SettingName(Setting.BATCH_SHAPE), "32 x 8", "16 x 8"),
        ConfigurationFacts(SettingName(Setting.GRADIENTS_CLEARED), not_cleared_since=12),
        UnclearedFacts(3),
        LintFacts("frozen", "8 parameters frozen, 97% of all values: a, b.", (("frozen", 8.0), ("values", 97.0))),
        SpikeBatchFacts(
            (TensorFacts("args[0]", (), "", -2.0, 3.0, None),), saved_in="/a b/batch-000400.pt", in_run=True
        ),
        NonFiniteFacts("loss", math.inf, 0.25),
        NonFiniteFacts("loss", -math.inf, None),
    ],
)
def test_facts_of_an_old_event_are_recovered_from_its_message(facts: Facts) -> None:
    kind = "inf_detected" if isinstance(facts, NonFiniteFacts) else ""
    event = Finding.at(facts, 400, Severity.WARNING, kind=kind)
    if isinstance(facts, NonFiniteFacts):
        assert facts_of_old_event(kind, event.message, {"loss": facts.value}) == facts
    else:
        assert read_from_old_line(event) == facts


def test_a_training_that_an_old_recording_says_was_ended_is_known_as_such() -> None:
    facts = GiveUpFacts(GaveUp.NO_ROLLBACK, "loss 9. 3 rollbacks did not help.", 290, 3, ended_training=True)
    event = Finding.at(facts, 400, Severity.CRITICAL)
    assert facts_of_old_event(event.kind, event.message, {**event.metrics, "ended_training": 1.0}) == facts


def test_a_rollback_keeps_its_numbers_and_its_reason() -> None:
    event = Finding.at(RollbackFacts("loss 9.", 380, 395, 22, 0.1, 1, learning_rate=0.1), 402, Severity.INFO)
    facts = read_from_old_line(event)
    assert isinstance(facts, RollbackFacts)
    assert (facts.target, facts.steps_lost, facts.learning_rate, facts.reason) == (380, 22, 0.1, "loss 9.")
    assert facts.steps_regained is None
    reverted = RollbackFacts("It did not help.", 402, 395, 8, 0.1, 2, steps_regained=14)
    facts = read_from_old_line(Finding.at(reverted, 410, Severity.INFO))
    assert isinstance(facts, RollbackFacts)
    assert (facts.steps_regained, facts.reason) == (14, "It did not help.")


def test_an_origin_has_its_source_its_operations_and_its_sentence() -> None:
    evidence = {
        "from.loss": 1.0,
        "input.nan": 0.0,
        "input.inf": 0.0,
        "input.least": -2.0,
        "input.greatest": 3.0,
        "operation.log": 1.0,
        "operation.div": 1.0,
        "dtype.float16": 1.0,
        "output.nan": 2.0,
        "output.inf": 0.0,
        "overflow": 0.0,
    }
    message = "Step 400: the first non-finite value comes from log: see a.py:3 in f."
    facts = facts_of_old_event("nan_origin", message, evidence, "layer.2")
    assert isinstance(facts, NanOriginFacts)
    assert (facts.source, facts.module, facts.operations) == (NanSource.LOSS, "layer.2", ("log", "div"))
    assert (facts.value_range, facts.overflowed) == ((-2.0, 3.0), False)
    assert facts.output is not None
    assert (facts.output.dtype, facts.output.nan) == ("float16", 2)
    assert facts.statement == "The first non-finite value comes from log: see a.py:3 in f."
    assert facts.sentence(400) == message


@pytest.mark.parametrize(
    ("again", "rerun"),
    [
        ("The same batch is non-finite again, first in b.", Rerun.DATA_OR_NUMERICS),
        ("The same batch with the same random numbers is finite this time: check the hardware first.", Rerun.HARDWARE),
        ("The model's output was finite both times: check the labels.", Rerun.AFTER_THE_MODEL),
        ("The batch was not run again: it is too large.", None),
    ],
)
def test_a_batch_has_its_file_and_what_running_it_again_showed(again: str, rerun: Rerun | None) -> None:
    made = BrokenBatchFacts((BATCH,), saved_in="/a/batch-000400.pt", rerun=rerun, rerun_words=again)
    facts = read_from_old_line(Finding.at(made, 400, Severity.INFO))
    assert isinstance(facts, BrokenBatchFacts)
    assert (facts.rerun, facts.saved_in, facts.in_run) == (rerun, "/a/batch-000400.pt", False)
    assert facts.tensors == (BATCH,)
    assert facts.rerun_words == (again if rerun is Rerun.AFTER_THE_MODEL else "")


def test_a_batch_that_was_not_saved_has_no_file() -> None:
    facts = read_from_old_line(Finding.at(BrokenBatchFacts((BATCH,), not_saved="The disk is full."), 4, Severity.INFO))
    assert isinstance(facts, BatchFacts)
    assert facts.saved_in == ""


def test_unknown_sentences_stay_different() -> None:
    first, second = (facts_of_old_event("not_measured", message, {}) for message in ("This.", "That."))
    assert isinstance(first, OtherFacts)
    assert first != second
    assert facts_of_old_event("early_stopping", "It stopped.", {}) is None
    assert facts_of_old_event("rollback", "Rolled back.", {}) is None
    assert facts_of_old_event("plateau", "It stays.", {}) is None
    changed = facts_of_old_event("configuration_changed", "Something changed.", {})
    assert changed == OtherFacts({"message": "Something changed."})


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("loss_spike", SpikeFacts(7.5, 0.5, 18.8, 8.0, gradient_sigmas=9.0)),
        ("divergence", DivergenceFacts(9.1, 1.28, 30.2, 6.0, 12, 16, first_high=390, onset=384)),
        ("divergence", SlowRiseFacts(2.1, 1.9, 32, 0.1, 8.0, 7.0)),
        ("divergence", SlowRiseFacts(2.9, 1.9, 32, 0.53)),
        ("divergence", SizeFacts(4e5, 410.0, 20, 12, 16, 4.1e5, 388)),
        ("divergence", StartFacts(9.1, 2.3, 0.4, 2, 3, 3.0)),
        ("plateau", PlateauFacts(2.3, 2.31, 0.004, 1000, 10)),
        ("overfitting", OverfittingFacts(1.9, 300, 2.1, 0.4, 0.8, 1.1)),
        ("repeated_data", NoNoiseFacts(0.5, 0.1, 16, 0.025)),
        ("constant_output", NoNoiseFacts(0.5, 0.1, 16, 0.025, 0.3)),
    ],
)
def test_the_numbers_of_an_old_event_tell_which_facts_they_are(kind: str, facts: Facts) -> None:
    read = read_from_old_line(Finding.at(facts, 400, Severity.WARNING, kind=kind))
    assert type(read) is type(facts)
    assert read.numbers() == facts.numbers()
