"""Logs and runs of other tools give the findings that a recording gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.importers.open_log import read
from mlflow_stability.vocabulary.result import Finding

STEPS = range(0, 2000, 5)


def findings_by_kind(path: Path, text: str, name: str = "train.log") -> dict[str, Finding]:
    log = path / name
    log.write_text(text)
    (run,) = read(log)
    return {finding.kind: finding for finding in diagnosis_of(run).findings}


def losses() -> list[float]:
    rng = np.random.default_rng(0)
    return [2 + 3 * float(np.exp(-n / 700)) + float(rng.normal(0, 0.02)) for n in STEPS]


def table(**columns: list[float]) -> str:
    names = ["step", "loss", *(name.replace("__", "/") for name in columns)]
    rows = zip(STEPS, losses(), *columns.values(), strict=True)
    return "\n".join([",".join(names), *(",".join(f"{value:g}" for value in row) for row in rows)]) + "\n"


def jump(before: float, after: float, at: int) -> list[float]:
    return [before if n < at else after for n in STEPS]


@pytest.mark.parametrize(
    ("column", "values", "kind", "step"),
    [
        ("sdr_unique_ratio", jump(0.7, 0.2, 1200), "sdr_collapse", 1205),
        ("sdr__unique_patterns", jump(71.5, 18.3, 1200), "sdr_collapse", 1205),
        ("sdr__unique_patterns", jump(512, 90, 1200), "sdr_collapse", 1205),
        ("rollback_count", jump(0, 1, 900), "rollback", 900),
        ("rollback_count", jump(1, 1, 0), "rollback", 0),
        ("skipped_steps", jump(0, 1, 1000), "step_skipped", 1000),
        ("mfu", jump(0.5, 0.2, 1000), "low_mfu", 1245),
        ("mfu", jump(50, 20, 1000), "low_mfu", 1245),
        ("gpu_memory_percent", jump(70, 98, 1500), "memory_pressure", 1510),
        ("gpu_memory_percent", jump(0.7, 0.98, 1500), "memory_pressure", 1510),
        ("tokens_per_second", jump(50_000, 20_000, 1500), "throughput_drop", 1520),
    ],
)
def test_metrics_of_other_tools_are_judged_like_ours(
    tmp_path: Path, column: str, values: list[float], kind: str, step: int
) -> None:
    rng = np.random.default_rng(1)
    noisy = [value * float(1 + rng.normal(0, 0.002)) if kind == "throughput_drop" else value for value in values]
    episodes = findings_by_kind(tmp_path, table(**{column: noisy}), "metrics.csv")
    assert episodes[kind].start == step


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("gpu_memory_usage", jump(41_000, 79_500, 1500)),  # megabytes
        ("sdr__unique_patterns", jump(20, 20, 1200)),  # a count, or a percentage: unclear
        ("rollback_count", jump(0, 0, 1)),
        ("mfu", [-100.0, *jump(45, 45, 0)[1:]]),
    ],
)
def test_ambiguous_or_implausible_columns_give_no_finding(tmp_path: Path, column: str, values: list[float]) -> None:
    assert findings_by_kind(tmp_path, table(**{column: values}), "metrics.csv") == {}


def test_a_layer_that_explodes_is_named_as_in_the_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    layers = {
        f"grad_norm_by_layer__h.{layer}.attn": [
            float(np.exp(rng.normal(0, 0.1))) * (40 if layer == 2 and n >= 1500 else 1) for n in STEPS
        ]
        for layer in range(4)
    }
    episode = findings_by_kind(tmp_path, table(**layers), "metrics.csv")["layer_explosion"]
    assert (episode.start, episode.place) == (1500, "h.2.attn")


def log(*result: tuple[int, str]) -> str:
    words = dict(result)
    lines = [f"Batch {n} | Loss: {loss:.4f}\n" + words.get(n, "") for n, loss in zip(STEPS, losses(), strict=True)]
    return "rollback_triggered: False\n" + "".join(lines)


def test_words_of_a_log_are_findings_at_their_batch_and_line(tmp_path: Path) -> None:
    episodes = findings_by_kind(
        tmp_path,
        log(
            (500, "NaN loss detected at batch 503! Skipping\n"),
            (900, "WARNING: Infinite gradient at batch 905\n"),
            (1200, "SDR COLLAPSE DETECTED: 18.3 % unique\n"),
            (1400, "Batch 1402: ROLLBACK TRIGGERED\n"),
        ),
    )
    assert {kind: (finding.start, finding.severity.name) for kind, finding in episodes.items()} == {
        "nan_detected": (503, "INFO"),
        "step_skipped": (503, "INFO"),
        "inf_detected": (905, "INFO"),
        "sdr_collapse": (1200, "CRITICAL"),
        "rollback": (1402, "INFO"),
    }
    assert episodes["nan_detected"].message.startswith("Line 103 of the log")
    assert episodes["sdr_collapse"].metrics["sdr_unique_ratio"] == pytest.approx(0.183)


def test_a_message_repeated_in_a_log_is_one_finding(tmp_path: Path) -> None:
    result = [(n, f"SDR COLLAPSE DETECTED: {18 + n % 3} % unique\n") for n in range(1200, 1300, 5)]
    episode = findings_by_kind(tmp_path, log(*result))["sdr_collapse"]
    assert (episode.start, episode.end, episode.count) == (1200, 1295, 20)
    assert "Logged 20 times until step 1295." in episode.message


def test_source_code_in_front_of_a_log_says_nothing(tmp_path: Path) -> None:
    assert findings_by_kind(tmp_path, "NaN loss detected\nROLLBACK TRIGGERED\nSDR COLLAPSE DETECTED\n" + log()) == {}
