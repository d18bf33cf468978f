"""No torch.optim anywhere: the loop says itself where a step is.

    python examples/03_a_loop_no_hook_can_see.py

The weights are moved by hand. `attach` records what `step` is given: the loss, and the gradients of the model.
"""

import torch
from torch import nn

import mlflow_stability

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
lr, momentum = 0.02, {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}

with mlflow_stability.attach(model) as watch:
    for _ in range(300):
        inputs = torch.rand(64, 4)
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), inputs.prod(1))
        model.zero_grad()
        loss.backward()
        watch.step(loss)  # the gradients are complete and still there
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                momentum[name].mul_(0.9).add_(parameter.grad)
                parameter.sub_(lr * momentum[name])
    print(f"loss {loss.item():.5f}; {watch.session.step} steps were recorded")
