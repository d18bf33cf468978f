"""Small pictures of ten kinds, drawn from torch's own generator, and how well features tell them apart."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

PATTERNS = functional.interpolate(
    torch.randn(10, 1, 4, 4, generator=Generator().manual_seed(5)), 12, mode="bilinear", align_corners=False
)


def digits(count: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Pictures of 1 x 12 x 12 with their number: the same ten patterns for every seed, shifted and in noise."""
    labels = torch.randint(10, (count,))
    pictures = 1.5 * PATTERNS[labels] + noise * torch.randn(count, 1, 12, 12)
    shifts = torch.randint(-1, 2, (count,))
    return torch.stack([p.roll(int(s), 2) for p, s in zip(pictures, shifts, strict=True)]), labels


def augmented(pictures: Tensor) -> Tensor:
    """Another view: a shift, another contrast, noise, and a dark square."""
    across, down = torch.randint(-1, 2, (2,)).tolist()
    views = pictures.roll((across, down), (2, 3)) * (0.7 + 0.6 * torch.rand(len(pictures), 1, 1, 1))
    views = views + 0.3 * torch.randn_like(views)
    row, column = torch.randint(0, 9, (2,)).tolist()
    views[:, :, row : row + 3, column : column + 3] = 0
    return views


class ConvNet(nn.Module):
    """The network of pytorch/examples' mnist, smaller."""

    def __init__(self, outputs: int = 10, dropout: float = 0.25) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(dropout)
        self.fc1 = nn.Linear(16 * 16, 32)
        self.fc2 = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = functional.max_pool2d(x, 2)
        x = self.dropout1(torch.flatten(x, 1))
        return self.fc2(functional.relu(self.fc1(x)))


@torch.no_grad()
def accuracy(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    model.eval()
    correct = model(pictures).argmax(dim=1).eq(labels).float().mean().item()
    model.train()
    return correct


@torch.no_grad()
def neighbour_accuracy(encoder: nn.Module) -> float:
    """How often the nearest of 500 pictures, by the encoder's features, is of the same kind."""
    encoder.eval()
    values, labels = digits(500)
    asked, truth = digits(200)
    similarity = functional.normalize(encoder(asked), dim=1) @ functional.normalize(encoder(values), dim=1).T
    encoder.train()
    return labels[similarity.argmax(1)].eq(truth).float().mean().item()
