"""Records the learning rate that a step was really taken with, where a rollback has reduced it.

In: the reading of a step, and what was done before it. Out: the reading with one more signal. Guarantees: the script's
own rate stays the signal ``learning_rate``; nothing is added where both are the same, or where only a device knows one.
"""

from __future__ import annotations

import math

from mlflow_stability.probes.step.reading import ProbeReading
from mlflow_stability.session.autopilot.step_record import StepRecord
from mlflow_stability.vocabulary.measured import Signal, SignalType, one_layout

SIGNALS = (
    SignalType(
        "learning_rate_used",
        "learning rate that the step was taken with, of the first parameter group; only while it is reduced after a "
        "rollback or a spike",
        "optimizer",
        interval="every step",
    ),
)


def with_used_rate(reading: ProbeReading, record: StepRecord) -> ProbeReading:
    """The same, and the used rate of the first group beside the one that the script has set."""
    named = zip(reading.signals, reading.values, strict=True)
    script = next(((signal.place, rate) for signal, rate in named if signal.quantity == "learning_rate"), None)
    used = next((rates[0] for rates in record.rates.values() if rates), math.nan)
    if script is None or not math.isfinite(used) or math.isclose(used, script[1], rel_tol=1e-6):
        return reading
    signals = one_layout((*reading.signals, Signal(SIGNALS[0].quantity, script[0])))
    return reading._replace(signals=signals, values=(*reading.values, used))
