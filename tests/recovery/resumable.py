"""A training that another process goes on with.

    python resumable.py whole|resumed FOLDER

`whole` takes 200 steps, and keeps a checkpoint of step 100 as a session does: right behind the optimizer's step, and
completed when the next backward pass begins. `resumed` takes the last 100 from there. Losses of these and all bits at
the end come out as one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

import torch
from torch import nn

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.resume import restore
from mlflow_stability.recovery.state.state_copy import copy_state, with_what_followed
from mlflow_stability.recovery.state.training_parts import find_parts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.4)
        self.down = nn.Linear(16, 8)
        self.down.weight = nn.Parameter(self.up.weight.data.t())  # shares its memory, turned
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.drop(self.norm(self.up(x)).relu()))).squeeze(1)


def main(mode: str, folder: Path) -> None:
    torch.manual_seed(1 if mode == "whole" else 2)
    random.seed(1 if mode == "whole" else 2)
    net = Net()
    matrices = [net.head.weight, net.down.weight]
    rest = [parameter for parameter in net.parameters() if all(parameter is not other for other in matrices)]
    optimizers = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250) for optimizer in optimizers]
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
    first, early = 1, None
    if mode == "resumed":
        resumed = restore(net, optimizers[::-1], scaler=scaler, directory=folder)
        assert resumed.messages == (), resumed.messages
        first = resumed.step + 1
    losses = []
    for step in range(first, 201):
        batch = torch.randn(12, 8) * random.uniform(0.5, 2.0)
        loss = (net(batch) - batch.sum(1)).pow(2).mean()
        if early is not None:
            copy = with_what_followed(early, find_parts(optimizers, scaler))
            store = CheckpointStore(folder, "r")
            store.commit(copy, losses[-1])
            store.promote(copy.step)
            early = None
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        if mode == "whole" and step == 100:
            early = copy_state(find_parts(optimizers, scaler), step)
        scaler.update()
        average.update_parameters(net)
        for schedule in schedules:
            schedule.step()
        losses.append(loss.item())
    everything = [net.state_dict(), average.state_dict(), scaler.state_dict()]
    everything += [optimizer.state_dict() for optimizer in (*optimizers, *schedules)]
    print(json.dumps({"first": first, "losses": [item.hex() for item in losses[-100:]], "end": digest(everything)}))


def digest(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())).hexdigest()
    if isinstance(value, dict):
        value = [(key, digest(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        value = [digest(item) for item in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
