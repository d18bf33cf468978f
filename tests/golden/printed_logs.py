"""Printed logs that tell of an event in words: overflow, skipped steps, lack of memory, a kill, an error.

Written here, in the words of PyTorch, Apex, DeepSpeed, fairseq and the kernel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

STEPS = 200


def losses(last: int = STEPS) -> Iterator[tuple[int, float]]:
    """A loss that falls with a small ripple, so that nothing is found in its curve."""
    for step in range(1, last + 1):
        yield step, 0.5 + 1.8 * math.exp(-step / 60) + 0.01 * math.sin(1.7 * step)


def printed(last: int = STEPS, **after: str) -> str:
    """Lines of steps; `after` has more lines by the step that they follow: ``step_120="Killed"``."""
    text = []
    for step, loss in losses(last):
        text.append(f"step {step} loss {loss:.4f} lr 1.0e-03")
        if f"step_{step}" in after:
            text.append(after[f"step_{step}"])
    return "\n".join(text) + "\n"


def shrinking_scale() -> str:
    """Steps that are skipped one after another while the loss scale is halved."""
    text = [f"step {step} loss {loss:.4f}" for step, loss in losses(120)]
    for count in range(16):
        text.append(f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0 ** (15 - count)}")
        text.append(f"step {121 + count} loss 0.7312")
    return "\n".join(text) + "\n"


def with_nan(first: int) -> str:
    """One JSON object a step, whose loss is NaN to the end."""
    rows = [{"step": step, "loss": round(loss, 4) if step < first else math.nan} for step, loss in losses()]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def in_epochs() -> str:
    """Training and validation loss of 30 epochs, the second of which rises again."""
    text = []
    for epoch in range(1, 31):
        train = 0.1 + 2.0 * math.exp(-epoch / 6)
        val = 0.6 + 1.5 * math.exp(-epoch / 4) + 0.03 * max(0, epoch - 10)
        text.append(f"Epoch {epoch}/30 - loss: {train:.4f} - val_loss: {val:.4f}")
    return "\n".join(text) + "\n"


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768"
RAISED = (
    "Traceback (most recent call last):\nValueError: Expected input batch_size (32) to match target batch_size (31)."
)
LOGS = {
    "nothing.log": printed,
    "out_of_memory.log": lambda: printed(120, step_120=MEMORY),
    "out_of_memory_and_on.log": lambda: printed(step_120=MEMORY),
    "killed.log": lambda: printed(120, step_120="Killed"),
    "interrupted.log": lambda: printed(120, step_120="KeyboardInterrupt"),
    "raised.log": lambda: printed(120, step_120=RAISED),
    "overflow.log": lambda: printed(step_90=OVERFLOW, step_91=OVERFLOW),
    "shrinking_scale.log": shrinking_scale,
    "nan.jsonl": lambda: with_nan(150),
    "epochs.log": in_epochs,
    "two_values.csv": lambda: "step,loss\n1,2.5\n2,2.4\n",
    "no_loss.csv": lambda: "name,colour\na,red\nb,blue\n",
    "empty.log": lambda: "",
}
"""The text of each log by the name of its file; the last ones cannot be judged."""


def write_logs(folder: Path) -> list[str]:
    """Write all of them; return the names of the files."""
    for name, text_of in LOGS.items():
        (folder / name).write_text(text_of(), encoding="utf-8")
    return list(LOGS)
