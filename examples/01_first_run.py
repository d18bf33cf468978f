"""One line more, and every step of a training is in MLflow.

    python examples/01_first_run.py

The loop is an ordinary one. There is no run in progress, so one is started; it lies in ./mlflow.db unless
MLFLOW_TRACKING_URI says otherwise. Open it with the command that is printed.
"""

import torch
from torch import nn

import mlflow_stability

mlflow_stability.autolog()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)

for _ in range(400):
    # Which of two spirals does a point belong to?
    side = torch.randint(2, (128,))
    angle = 1 + 6 * torch.rand(128)
    turned = angle + torch.pi * side
    points = torch.stack([angle * turned.cos(), angle * turned.sin()], 1) + 0.1 * torch.randn(128, 2)

    loss = nn.functional.binary_cross_entropy_with_logits(model(points / 5).squeeze(1), side.float())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()

print(f"final loss {loss.item():.4f} after {mlflow_stability.current_session().step} recorded steps")
print("look at it: mlflow ui --backend-store-uri sqlite:///mlflow.db")
