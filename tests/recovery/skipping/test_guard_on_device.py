from __future__ import annotations

import pytest
import torch
from recovery.guarded_training import differences, guarding, picture
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def optimizer_of(name: str, model: nn.Module) -> Optimizer:
    if name == "sgd":
        return SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    if name == "capturable":
        return Adam(model.parameters(), lr=0.01, capturable=True)
    return AdamW(model.parameters(), lr=0.01, fused=True)


@pytest.mark.parametrize("name", ["sgd", "adamw", "capturable"])
def test_a_broken_step_on_the_device_changes_nothing_and_fused_ones_wait_for_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).cuda()
    optimizer = optimizer_of(name, model)
    batches = torch.randn(8, 6, 4, device="cuda")
    batches[4, 2, 1] = float("nan")
    with guarding(model) as meter:
        for step, inputs in enumerate(batches):
            before = picture(model, optimizer)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            torch.cuda.synchronize()
            if name != "capturable" and step > 1:
                torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert bool(differences(before, picture(model, optimizer))) is (step != 4)
    brokens = [verdict.broken for verdict in meter.verdicts]
    assert brokens[4] is (True if name == "capturable" else None)
