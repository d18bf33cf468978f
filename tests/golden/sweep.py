"""A sweep of learning rates in MLflow's file layout, in which the highest rates diverge."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

RATES, WARM_UPS, SEEDS = (0.001, 0.003, 0.01, 0.03, 0.1), (0, 100), (0, 1, 2)
HIGHEST_STABLE = 0.01
STEPS, DIVERGES_AT = 120, 70
META = """artifact_uri: file:///sweep/{name}/artifacts
end_time: 1780000001000
experiment_id: '0'
lifecycle_stage: active
run_id: {name}
run_name: {name}
source_type: 4
start_time: 1780000000000
status: 3
user_id: someone
"""


def write_sweep(experiment: Path) -> list[str]:
    """Write one run for each learning rate, warm-up and seed; return their paths."""
    runs = []
    for number, (rate, warm_up, seed) in enumerate(product(RATES, WARM_UPS, SEEDS)):
        run = experiment / f"lr{rate:g}-warmup{warm_up}-seed{seed}"
        for folder in ("metrics", "params", "tags", "artifacts"):
            (run / folder).mkdir(parents=True)
        (run / "meta.yaml").write_text(META.format(name=run.name))
        (run / "tags" / "mlflow.runName").write_text(run.name)
        for name, value in (("lr", rate), ("warmup", warm_up), ("seed", seed)):
            (run / "params" / name).write_text(f"{value:g}")
        losses = enumerate(loss_of(rate, number), start=1)
        (run / "metrics" / "loss").write_text(
            "".join(f"{1780000000000 + step} {loss:.6g} {step}\n" for step, loss in losses)
        )
        runs.append(str(run))
    return runs


def loss_of(rate: float, seed: int) -> np.ndarray:
    """A loss that falls the faster the higher the rate, with 2 % noise; rates that are too high diverge."""
    step = np.arange(STEPS)
    loss = 0.3 + 2.0 / (1.0 + step * rate * 10)
    if rate > HIGHEST_STABLE:
        loss = np.where(step >= DIVERGES_AT, loss + 0.2 * (step - DIVERGES_AT + 1), loss)
    return np.asarray(loss * (1.0 + np.random.default_rng(seed).uniform(-0.02, 0.02, STEPS)))
