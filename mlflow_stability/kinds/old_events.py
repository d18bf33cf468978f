"""Read the facts of events that were recorded before events had facts, from their sentences and numbers.

No other module reads sentences of this package. Importing this one registers the facts of all kinds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from mlflow_stability.kinds.loss.divergence import DivergenceFacts, SizeFacts, SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.loss.loss_spike import SpikeFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.progress.overfitting import OverfittingFacts
from mlflow_stability.kinds.progress.plateau import PlateauFacts
from mlflow_stability.kinds.progress.repeated_data import NoNoiseFacts
from mlflow_stability.kinds.reported.autopilot import DataChangedFacts, EarlyStopFacts
from mlflow_stability.kinds.reported.broken_steps import (
    BrokenBatchFacts,
    NanOriginFacts,
    NanSource,
    Rerun,
    SpikeBatchFacts,
    TensorFacts,
)
from mlflow_stability.kinds.reported.endings import RepresentationSummaryFacts
from mlflow_stability.kinds.reported.rollback import GaveUp, GiveUpFacts, RollbackFacts
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, LintFacts, Setting, SettingName, UnclearedFacts
from mlflow_stability.vocabulary.facts import Facts, OtherFacts, field_types

Numbers = Mapping[str, float]

_ROLLED_BACK = re.compile(r"^(?:Rolled back|Reverted).*?\): (?P<reason>.*)$", re.DOTALL)
_NO_ROLLBACK = re.compile(
    r"^No rollback at step \d+: (?P<reason>.*?)(?: (?:Training stopped with TrainingDiverged|"
    r"No further rollbacks; broken steps are still skipped)\.)?$",
    re.DOTALL,
)
_STOPPED = re.compile(
    r"^Training stopped (?P<when>before|after) step \d+(?: was taken)?: "
    r"(?P<reason>.*?) \(stop_on=(?P<condition>.*?)\)\."
)
_SAVED = re.compile(
    r"Its tensors are saved in (?P<file>.+?\.pt)(?P<in_run>, and in the run under stability/batches/)?\.$"
)
_FINITE_BOTH_TIMES = re.compile(r"The model's output was finite both times.+?\.(?= Its tensors|$)")
_CHANGED = re.compile(
    r"^(?P<name>.+?) (?:changed|went) from (?P<before>.*?) to (?P<after>.*?), seen at step \d+\.", re.DOTALL
)
_LAST_FINITE = re.compile(r"; last finite value (?P<value>\S+?)(?=;|\. |\.?$)")
_SETTINGS = {
    str(SettingName(setting)): setting
    for setting in Setting
    if setting not in (Setting.GROUP_OPTION, Setting.PARAMETER_GROUPS, Setting.GRADIENTS_CLEARED)
}


def facts_of_old_event(kind: str, message: str, evidence: Numbers, place: str = "") -> Facts | None:
    """Return the facts of an event; None where its kind had none, or its sentence is not known."""
    read = _READERS.get(kind)
    return None if read is None else read(message, evidence, place)


def _nan_origin(message: str, evidence: Numbers, place: str) -> Facts:
    source = next((source for source in NanSource if f"from.{source.value}" in evidence), NanSource.ELSEWHERE)
    operations = tuple(name.partition(".")[2] for name in evidence if name.startswith("operation."))
    dtype = next((name.partition(".")[2] for name in evidence if name.startswith("dtype.")), "")
    first_input = _tensor("input", "", evidence)
    overflow = evidence.get("overflow")
    return NanOriginFacts(
        source,
        place,
        operations,
        inputs=() if first_input is None else (first_input,),
        output=_tensor("output", dtype, evidence),
        overflowed=None if overflow is None else overflow == 1.0,
        text=message.partition(": ")[2] or message,
    )


def _tensor(name: str, dtype: str, evidence: Numbers) -> TensorFacts | None:
    nan, inf, least, greatest = (evidence.get(f"{name}.{part}") for part in ("nan", "inf", "least", "greatest"))
    if nan is inf is least is greatest is None:
        return None
    return TensorFacts(name, (), dtype, least, greatest, None, int(nan or 0), int(inf or 0))


def _batch(message: str, evidence: Numbers) -> dict[str, Any]:
    names = dict.fromkeys(name.partition(".")[2] for name in evidence if "." in name)
    tensors = tuple(
        TensorFacts(
            name,
            (),
            "",
            evidence.get(f"least.{name}"),
            evidence.get(f"greatest.{name}"),
            None,
            nan=int(evidence.get(f"not_finite.{name}", 0)),
        )
        for name in names
    )
    saved = _SAVED.search(message)
    if saved is None:
        return {"tensors": tensors}
    return {"tensors": tensors, "saved_in": saved["file"], "in_run": saved["in_run"] is not None}


def _broken_batch(message: str, evidence: Numbers, _place: str) -> Facts:
    rerun = {1.0: Rerun.HARDWARE, 0.0: Rerun.DATA_OR_NUMERICS}.get(evidence.get("finite_again", math.nan))
    words = ""
    if (finite := _FINITE_BOTH_TIMES.search(message)) is not None:
        rerun, words = Rerun.AFTER_THE_MODEL, finite[0]
    return BrokenBatchFacts(**_batch(message, evidence), rerun=rerun, rerun_words=words)


def _spike_batch(message: str, evidence: Numbers, _place: str) -> Facts:
    return SpikeBatchFacts(**_batch(message, evidence))


def _rollback(message: str, evidence: Numbers, _place: str) -> Facts | None:
    if "target" not in evidence:
        return None
    match = _ROLLED_BACK.match(message)
    regained = evidence.get("steps_regained")
    return RollbackFacts(
        message if match is None else match["reason"],
        int(evidence["target"]),
        int(evidence.get("onset", 0)),
        int(evidence.get("steps_lost", 0)),
        evidence.get("seconds", math.nan),
        int(evidence.get("rollbacks", 1)),
        steps_regained=None if regained is None else int(regained),
        learning_rate=evidence.get("learning_rate"),
        learning_rate_share=evidence.get("learning_rate_share"),
    )


def _data_changed(message: str, evidence: Numbers, _place: str) -> Facts | None:
    if "onset" not in evidence:
        return None
    target = evidence.get("target")
    return DataChangedFacts(
        f"{message.partition('. ')[0]}.",
        int(evidence["onset"]),
        int(evidence.get("rollbacks", 0)),
        evidence.get("loss", math.nan),
        evidence.get("level", math.nan),
        target=None if target is None else int(target),
    )


def _give_up(message: str, evidence: Numbers, _place: str) -> Facts:
    match = _NO_ROLLBACK.match(message)
    return GiveUpFacts(
        GaveUp.NO_ROLLBACK if match is not None else GaveUp.NOT_RESTORED,
        message if match is None else match["reason"],
        int(evidence.get("onset", 0)),
        int(evidence.get("rollbacks", 0)),
        ended_training="ended_training" in evidence,
    )


def _early_stopping(message: str, _evidence: Numbers, _place: str) -> Facts | None:
    match = _STOPPED.match(message)
    return None if match is None else EarlyStopFacts(match["condition"], match["reason"], match["when"] == "before")


def _configuration(message: str, evidence: Numbers, _place: str) -> Facts:
    since = evidence.get("not_cleared_since")
    if since is not None:
        return ConfigurationFacts(SettingName(Setting.GRADIENTS_CLEARED), not_cleared_since=int(since))
    match = _CHANGED.match(message)
    if match is None:
        return OtherFacts({"message": message})
    return ConfigurationFacts(_setting(match["name"]), match["before"], match["after"])


def _setting(name: str) -> SettingName:
    if name in _SETTINGS:
        return SettingName(_SETTINGS[name])
    what, _, owner = name.partition(" of ")
    if what == "The number" and owner.startswith("parameter groups of "):
        return SettingName(Setting.PARAMETER_GROUPS, owner=owner.removeprefix("parameter groups of "))
    if what == "The number" and owner == "parameters that are trained":
        return SettingName(Setting.TRAINED_PARAMETERS)
    return SettingName(Setting.GROUP_OPTION, what, owner)


def _uncleared(_message: str, evidence: Numbers, _place: str) -> Facts:
    return UnclearedFacts(int(evidence.get("steps", 0)))


def _lint(message: str, evidence: Numbers, _place: str) -> Facts:
    return LintFacts("frozen" if " frozen, " in message else "", message, tuple(evidence.items()))


def _remark(message: str, _evidence: Numbers, _place: str) -> Facts:
    return OtherFacts({"message": message})


def _representations(_message: str, evidence: Numbers, place: str) -> Facts:
    apart = ("measurements", "warnings", "last_unique_ratio")
    means = tuple((name, value) for name, value in evidence.items() if name not in apart)
    unique = evidence.get("last_unique_ratio")
    last = () if unique is None else (("sdr_unique_ratio", unique),)
    measurements, warnings = (int(evidence.get(name, 0)) for name in apart[:2])
    return RepresentationSummaryFacts(place, measurements, means, last, warnings)


def _non_finite(message: str, evidence: Numbers, _place: str) -> Facts | None:
    name = next((name for name, value in evidence.items() if not math.isfinite(value)), None)
    last = _LAST_FINITE.search(message)
    if name is None:
        return None
    return NonFiniteFacts(name, evidence[name], None if last is None else float(last["value"]))


def _first_of(*classes: type[Facts]) -> Callable[[str, Numbers, str], Facts | None]:
    """Return a reader of the first of these classes whose fields without a default are all there."""

    def read(_message: str, evidence: Numbers, _place: str) -> Facts | None:
        return next((facts for cls in classes if (facts := _of_numbers(cls, evidence)) is not None), None)

    return read


def _of_numbers(cls: type[Facts], evidence: Numbers) -> Facts | None:
    """Return facts with these metrics; fields that no metric gives are NaN, 0 or empty."""
    metrics = cls.metrics if isinstance(cls.metrics, Mapping) else {name: name for name in cls.metrics}
    names = {field: name for name, field in metrics.items()}
    hints = field_types(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):
        name, wanted = names.get(field.name, ""), hints[field.name]
        if name in evidence:
            values[field.name] = evidence[name] if wanted in (float, float | None) else int(evidence[name])
        elif field.default is MISSING and name:
            return None
        elif field.default is MISSING:
            values[field.name] = math.nan if wanted is float else wanted()
    return cls(**values)


_READERS: Mapping[str, Callable[[str, Numbers, str], Facts | None]] = {
    "nan_origin": _nan_origin,
    "broken_batch": _broken_batch,
    "spike_batch": _spike_batch,
    "rollback": _rollback,
    "data_changed": _data_changed,
    "give_up": _give_up,
    "early_stopping": _early_stopping,
    "configuration_changed": _configuration,
    "missing_zero_grad": _uncleared,
    "model_lint": _lint,
    "not_measured": _remark,
    "representation_summary": _representations,
    "nan_detected": _non_finite,
    "inf_detected": _non_finite,
    "loss_spike": _first_of(SpikeFacts),
    "divergence": _first_of(SlowRiseFacts, SizeFacts, StartFacts, DivergenceFacts),
    "plateau": _first_of(PlateauFacts),
    "overfitting": _first_of(OverfittingFacts),
    "repeated_data": _first_of(NoNoiseFacts),
    "constant_output": _first_of(NoNoiseFacts),
}
