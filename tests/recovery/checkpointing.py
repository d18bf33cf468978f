"""Kills processes that write checkpoints, and looks at what they leave.

    python checkpointing.py FOLDER KILLS [SEED]

A child writes one checkpoint after the other and says so once each is on the disk; after a random time it is killed.
What can be loaded then must be whole, and at least as new as the last one that was reported as written. The next child
goes on in the same directory. One line of JSON comes out.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.state_file import read_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import damage_of, find, listing
from mlflow_stability.recovery.state.restore import restore_state
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts


class Counter(torch.nn.Module):
    """Every number in it is the step."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.ParameterList(torch.zeros(5_000) for _ in range(8))


def child(folder: Path, first: int, count: int) -> None:
    store = CheckpointStore(folder, "r", 4)
    model = Counter()
    parts = TrainingParts((), (model,))
    os.write(count, bytes(4))
    for step in range(first, 1_000_000):
        with torch.no_grad():
            for number in model.numbers:
                number.fill_(step)
        store.commit(copy_state(parts, step), 1.0 / step)
        os.write(count, step.to_bytes(4, "little"))
        if step % 2:
            store.promote(step)


def one_life(folder: Path, first: int, seconds: float) -> int:
    """The last step that was reported as written before the kill; 0 for none."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ear)
            child(folder, first, mouth)
        finally:
            os._exit(9)
    os.close(mouth)
    records = os.read(ear, 4)  # it has begun
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    while block := os.read(ear, 65536):
        records += block
    os.close(ear)
    return int.from_bytes(records[-4:], "little")


def main(folder: Path, kills: int, seed: int) -> None:
    dice, model = random.Random(seed), Counter()
    newest, damaged, drafts, written = 0, 0, 0, 0
    for _ in range(kills):
        last = one_life(folder, newest + 1, dice.uniform(0.0, 0.08))
        drafts += len(list(folder.glob(".writing-*")))
        shelf = listing(folder)
        damaged += sum(bool(damage_of(item)) for item in shelf)
        if not shelf:
            assert last == 0
            continue
        checkpoint = find(folder, "newest").checkpoint
        assert checkpoint.step >= max(last, newest), (checkpoint.step, last, newest)
        restore_state(read_state(checkpoint.folder / "state.pt"), TrainingParts((), (model,)))
        assert all(bool((number == checkpoint.step).all()) for number in model.numbers)
        assert len(shelf) <= 5, [point.step for point in shelf]
        written += checkpoint.step - newest
        newest = checkpoint.step
    print(json.dumps({"kills": kills, "written": written, "damaged": damaged, "cut off while writing": drafts}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
