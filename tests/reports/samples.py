"""Diagnoses to report on, made by hand."""

from __future__ import annotations

import math

import numpy as np
from findings import over_steps

from mlflow_stability.reports.report import Failure, Report
from mlflow_stability.vocabulary.result import (
    Cause,
    CurveReading,
    Diagnosis,
    Finding,
    NotJudged,
    Severity,
    Sketch,
    Text,
    read_remedies,
)

STEPS = np.arange(1000)
FALLING = 1.5 + 3 * np.exp(-STEPS / 150)


def sketch(metric: str, values: np.ndarray) -> Sketch:
    parts = np.array_split(np.arange(len(values)), min(400, len(values)))
    return Sketch(
        metric,
        tuple(int(part[0]) for part in parts),
        tuple(float(values[part].min()) for part in parts),
        tuple(float(values[part].max()) for part in parts),
    )


def reading(metric: str, values: np.ndarray) -> CurveReading:
    return CurveReading(
        metric,
        "",
        len(values),
        0,
        len(values) - 1,
        float(values[0]),
        float(values[-1]),
        float(np.nanmin(values)),
        int(np.nanargmin(values)),
        trend="strong",
        change=-0.66,
        stability="smooth",
        volatility=0.03,
        pattern="monotone",
        shape="decay",
        health="ok",
        expected_final=1.49,
    )


def healthy(source: str = "logs/good.jsonl") -> Diagnosis:
    return Diagnosis(
        source,
        source.rpartition("/")[2],
        "json_lines",
        "JSON lines: 1,000 values of 1 metric",
        "healthy",
        "Healthy: train_loss fell from 4.50 to 1.50 in 1,000 steps; no warnings.",
        curves=(reading("train_loss", FALLING),),
        sketches=(sketch("train_loss", FALLING),),
        cannot_tell=(NotJudged("Overfitting: no validation loss was logged."),),
        steps=(0, 999),
        points=1000,
    )


def spike() -> Finding:
    return over_steps(
        "loss_spike",
        Severity.WARNING,
        300,
        300,
        300,
        "loss is 5.71 at step 300, from a level of 1.91.",
        recovered=True,
        metric="train_loss",
        also=(Text("", (("loss", 5.71), ("z", 31.2))),),
        remedies=read_remedies(("Lower the learning rate 2-5 times.", "Look at the batch of this step.")),
        cause=Cause(
            "bad_batch", "A bad batch at step 300: the loss jumped and came back.", kind="loss_spike", step=300
        ),
    )


def nan() -> Finding:
    return over_steps(
        "nan_detected",
        Severity.CRITICAL,
        960,
        960,
        999,
        "loss is NaN at step 960; the last finite value before it was 24.13.",
        count=2,
        recovered=False,
        metric="train_loss",
        place="decoder",
        attempt=1,
        also=(Text("", (("loss", math.nan), ("before", math.inf), ("after", -math.inf))),),
    )


def oscillation() -> Finding:
    message = "38 % of the last 100 points are local extremes."
    return over_steps("oscillation", Severity.INFO, 420, 430, 480, message, metric="train_loss", experimental=True)


def broken(source: str = "logs/bad.jsonl") -> Diagnosis:
    values = FALLING.copy()
    values[300] *= 3
    values[960:] = np.nan
    return Diagnosis(
        source,
        source.rpartition("/")[2],
        "json_lines",
        "JSON lines: 1,000 values of 1 metric",
        "broken",
        "Broken: train_loss became NaN at step 960 and stayed so to the end.",
        findings=(spike(), oscillation(), nan()),
        cause=Cause(
            "overflow",
            "The loss was infinite one step before it was NaN.",
            ("inf at step 959", "the loss scale was halved 3 times"),
            ("learning rate: constant at 3e-4",),
            ("gradient norm: not logged",),
            kind="nan_detected",
            step=960,
        ),
        remedies=read_remedies(("Train in bf16 instead of fp16.", "Lower the learning rate 2-5 times.")),
        curves=(reading("train_loss", values),),
        sketches=(sketch("train_loss", values),),
        cannot_tell=(NotJudged("Gradients: no gradient norm was logged."),),
        notes=("5 lines were no JSON.",),
        ended="crashed",
        steps=(0, 999),
        points=1000,
    )


def run_of_a_store() -> Diagnosis:
    return Diagnosis(
        "0" * 32, "clever-loon-12", "recorded", "the full record", "cannot_tell", "Too short to be judged."
    )


BAD = Report((broken(),))
GOOD = Report((healthy(),))
SEVERAL = Report((broken(), healthy()), (Failure("gone.csv", "There is no gone.csv."),))
MIXED = Report((broken(), run_of_a_store()), (Failure("1" * 32, "No such run.", is_path=False),))
NOTHING = Report(())
ALL = (BAD, GOOD, SEVERAL, MIXED, NOTHING)
