"""The manual's tables of signals and options are the code's.

``python tests/manual/test_signal_table.py`` renews them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from architecture.repository import PACKAGE

from mlflow_stability.alerts.run_metrics import EVENTS, EVERYTHING, STEP_DURATION
from mlflow_stability.manual.pages import options_page, signals_page
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.thinning import LOGGED_BY_THE_SCRIPT
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import signal_types

PAGE = PACKAGE / "manual" / "alerts.md"
SIGNALS = PACKAGE / "manual" / "signals.md"
OPTIONS = PACKAGE / "manual" / "options.md"
HEAD = "| in MLflow | Prometheus | OpenTelemetry | meaning |\n| --- | --- | --- | --- |\n"


def table() -> str:
    rows = []
    for metric in EVERYTHING:
        is_sent = metric.quantity and metric.quantity not in LOGGED_BY_THE_SCRIPT
        signal = f"`{metric_key(Signal(metric.quantity))}`" if is_sent else ""
        kind = " (histogram)" if metric is STEP_DURATION else " (labels `type`, `severity`)" if metric is EVENTS else ""
        if metric.by_device:
            kind = f" (labels `gpu_id`, `type`: `{metric.type}`)" if metric.type else " (label `gpu_id`)"
        rows.append(f"| {signal} | `{metric.prometheus}`{kind} | `{metric.otel}` | {metric.meaning} |\n")
    return HEAD + "".join(rows)


def with_table(text: str) -> str:
    return re.sub(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: table(), text)


def test_the_manual_has_every_name_of_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert HEAD in text
    assert with_table(text) == text, "python tests/manual/test_signal_table.py brings it up to date"


def test_the_written_page_of_signals_has_every_signal_as_it_is_declared() -> None:
    text = SIGNALS.read_text(encoding="utf-8")
    assert signals_page() == text, "python tests/manual/test_signal_table.py brings it up to date"
    assert all(f"| `{quantity}` |" in text for quantity in signal_types())


def test_the_written_page_of_options_has_every_argument_and_field_as_it_is_declared() -> None:
    text = OPTIONS.read_text(encoding="utf-8")
    assert options_page() == text, "python tests/manual/test_signal_table.py brings it up to date"
    assert all(f"\n| `{name}` |" in text for name in ("rollback", "stop_on", "exit_wait", "memory_budget"))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SIGNALS.write_text(signals_page(), encoding="utf-8")
    OPTIONS.write_text(options_page(), encoding="utf-8")
