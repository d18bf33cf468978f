from __future__ import annotations

import math
import time

import pytest
from findings import at_step
from rich.console import Console

from mlflow_stability.cli.watch import WatchedRun, duration, status_line, view
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing

SIGNALS = tuple(map(Signal, ("loss", "grad_norm", "learning_rate", "skipped_steps", "eta_seconds")))


def watched(steps: int = 400, findings: int = 3, norm: float = 1.5) -> WatchedRun:
    run = WatchedRun("a run \x1b[31m")
    began = time.time() - steps / 10
    for step in range(1, steps + 1):
        loss = math.nan if step == steps // 2 else 2.0 + 1 / step
        run.add(StepReading(step, SIGNALS, (loss, norm, 3e-4, 2.0, 480.0), 1, began + step / 10))
    for number in range(findings):
        step = 20 + 40 * number
        run.add(at_step(step, "loss_spike", Severity.WARNING, f"loss 7.47 at step {step}, " + "far above " * 20))
    run.add(at_step(390, "rollback", Severity.INFO, "Rolled back from step 390 to step 350.", evidence={"target": 350}))
    return run


def drawn(run: WatchedRun, width: int = 80, height: int = 24, *, unicode: bool = True) -> list[str]:
    console = Console(width=width, height=height, color_system=None, record=True, file=None, highlight=False)
    with console.capture() as result:
        console.print(view(TerminalWriter(console, unicode=unicode), run, height))
    return result.get().splitlines()


@pytest.mark.parametrize("size", [(80, 24), (40, 20), (160, 60)])
@pytest.mark.parametrize("findings", [0, 1, 30])
def test_the_view_fits_into_the_window(size: tuple[int, int], findings: int) -> None:
    lines = drawn(watched(findings=findings), *size)
    assert max(map(len, lines)) <= size[0]
    assert len(lines) <= size[1]


def test_the_view_shows_the_state_of_the_run_and_its_findings() -> None:
    text = "\n".join(drawn(watched()))
    for result in (
        "training",
        "step 400",
        "10 steps/s",
        "8 min left",
        "attempt 2",
        "1.5, healthy (0.1 to 10)",
        "learning rate 3.0e-04",
        "2 steps skipped  1 rollback",
        "Rolled back from step 390 to step 350.",
        "3 WARNING loss_spike  step 100",
    ):
        assert result in text
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(("norm", "zone"), [(300.0, "danger (> 100)"), (1e-7, "vanishing (< 1e-5)"), (50.0, "50\n")])
def test_the_gradient_norm_is_shown_with_its_zone(norm: float, zone: str) -> None:
    assert zone in "\n".join(drawn(watched(norm=norm))) + "\n"


def test_the_status_line_of_a_silent_training_shows_the_time_since_its_last_step() -> None:
    run = WatchedRun("a")
    run.add(StepReading(1, SIGNALS, (1.0,) * 5, 0, time.time() - 600))
    assert status_line(run) == "step 1  loss 1  gradient norm 1 (healthy)  last step 10 min ago"
    run.add(Closing("finished"))
    assert status_line(run) == "step 1  loss 1  gradient norm 1 (healthy)"


def test_a_run_without_a_step_and_one_of_nan_alone_can_be_shown() -> None:
    assert "no step yet" in "\n".join(drawn(WatchedRun("a")))
    run = WatchedRun("a")
    run.add(StepReading(1, SIGNALS[:2], (math.nan, math.inf), 0, time.time()))
    assert "no finite value" in "\n".join(drawn(run))


def test_a_terminal_without_unicode_gets_only_ascii() -> None:
    assert "\n".join(drawn(watched(), unicode=False)).isascii()


@pytest.mark.parametrize(
    ("seconds", "expected"), [(42, "42 s"), (480, "8 min"), (3 * 3600 + 300, "3 h 05 min"), (100 * 3600, "4 d 4 h")]
)
def test_durations_are_shown_in_at_most_two_units(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_a_curve_that_ended_earlier_is_not_stretched_to_the_end_of_the_axis() -> None:
    run = watched(100, findings=0)
    for step in range(101, 401):
        run.add(StepReading(step, SIGNALS[2:3], (3e-4,), 1, time.time()))
    rows = [line.partition("┤")[2] for line in drawn(run) if "┤" in line]
    assert max(len(row.rstrip()) for row in rows) <= 20
    assert "400" in "\n".join(drawn(run))
