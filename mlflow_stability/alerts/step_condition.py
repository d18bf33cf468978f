"""A condition that is a function of the newest value of each signal: `Alert(when=...)`.

In: what was measured at each step. Out: an event where the function says so. Guarantees: a signal that was not measured
yet, or that exists nowhere, is no reason; an exception of the function is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlflow_stability.alerts.metrics.signal_names import KNOWN_QUANTITIES
from mlflow_stability.vocabulary.argument import did_you_mean
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity, Text

When = Callable[[Mapping[str, float]], object]


class StepCondition:
    """The condition of one alert."""

    def __init__(self, when: When, severity: Severity, message: str, warn: Callable[..., None]) -> None:
        self._when, self._severity, self._message, self._warn = when, severity, message, warn
        name = getattr(when, "__name__", type(when).__name__)
        self.kind = "condition" if name == "<lambda>" else name
        """The type of its events."""
        self._values: dict[str, float] = {}
        self._is_reported = False

    def met(self, reading: StepReading) -> Finding | None:
        """An event where the condition is met after this step."""
        values = self._values
        values.update({str(signal): value for signal, value in zip(reading.signals, reading.values, strict=True)})
        try:
            if not self._when(values):
                return None
            said = self._message.format_map(values) or f"{self.kind} is met at step {reading.step}."
        except KeyError as error:  # not measured yet, or a name that no signal has
            name = str(error.args[0]) if error.args else ""
            if name.partition("@")[0] not in KNOWN_QUANTITIES and not name.startswith("val_loss"):
                self._report(f"there is no signal {name!r}.{did_you_mean(name, KNOWN_QUANTITIES)}")
            return None
        except Exception as error:  # the user's own code
            self._report(f"it raised {type(error).__name__}: {error}.")
            return None
        return Finding.at(
            Text(said), reading.step, self._severity, kind=self.kind, attempt=reading.attempt, time=reading.time
        )

    def _report(self, trouble: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._warn(
                "The alert condition %s does not work: %s Training continues; further errors are not reported.",
                self.kind,
                trouble,
            )
