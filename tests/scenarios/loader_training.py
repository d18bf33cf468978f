"""Trains from a DataLoader with workers; `autolog()` is at the top, where a spawned worker runs it again."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import mlflow_stability

mlflow_stability.autolog(strict=True)


class Numbers(Dataset[Tensor]):
    """Sixteen rows."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), index / 16)


def main(context: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=context):
            loss = model(batch).square().mean()
            loss.backward()
            print(loss.item(), flush=True)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
