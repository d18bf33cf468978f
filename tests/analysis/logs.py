"""Small logs to diagnose, written as scripts write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

STEPS = np.arange(600)


def falling(seed: int = 0) -> np.ndarray:
    return 1.5 + 3 * np.exp(-STEPS / 120) + 0.03 * np.random.default_rng(seed).normal(size=len(STEPS))


def ending_in_nan() -> np.ndarray:
    return np.where(STEPS < 400, falling(), math.nan)


def diverging() -> np.ndarray:
    return falling() * np.exp(np.maximum(0, STEPS - 300) / 60)


def write_log(path: Path, losses: Iterable[float], name: str = "train_loss") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"step": step, name: float(loss)}) for step, loss in enumerate(losses)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


CURVES: dict[str, Callable[[], np.ndarray]] = {"good": falling, "nan": ending_in_nan, "bad": diverging}
