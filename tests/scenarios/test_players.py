"""Two networks that train against each other: their losses rise and fall as the other one learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scenarios.flown_history import logged, recorded
from scenarios.flying import Flown, flying
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from mlflow_stability.detectors.loss_level import AlternatingLosses, take_turns
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity

MODES = 8


def half_of_a_gan(inputs: int, outputs: int, slope: float) -> nn.Sequential:
    first, second = nn.LeakyReLU(slope), nn.LeakyReLU(slope)
    return nn.Sequential(nn.Linear(inputs, 64), first, nn.Linear(64, 64), second, nn.Linear(64, outputs))


def ring(count: int) -> Tensor:
    """Points of eight Gaussians in a ring."""
    angle = torch.randint(MODES, (count,)) * (2 * torch.pi / MODES)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def train_a_gan(iterations: int, rate: float) -> nn.Module:
    """Binary cross-entropy, a generator that does not saturate, and noise on what the judge sees."""
    torch.manual_seed(1)
    generator, network = half_of_a_gan(16, 2, 0.0), half_of_a_gan(2, 1, 0.2)
    of_generator = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(network.parameters(), lr=rate, betas=(0.5, 0.999))
    yes, no = torch.ones(128, 1), torch.zeros(128, 1)

    def judge(points: Tensor) -> Tensor:
        return network(points + 0.3 * torch.randn_like(points))

    for _ in range(iterations):
        given = ring(128)
        made = generator(torch.randn(128, 16))
        loss = cross_entropy(judge(given), yes) + cross_entropy(judge(made.detach()), no)
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        loss = cross_entropy(judge(made), yes)
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
    return generator


def critical(flown: Flown) -> list[str]:
    """The kinds of what is critical: live, in the record, and in the log that the script might have kept."""
    live = [event.kind for event in flown.events() if event.severity is Severity.CRITICAL]
    seen = (recorded(flown), logged(flown, "loss", "loss@track_1"), logged(flown, "loss", "loss@track_1", every=10))
    return live + [
        finding.kind for run in seen for finding in diagnosis_of(run).findings if finding.severity is Severity.CRITICAL
    ]


@pytest.mark.slow
def test_a_gan_that_hits_every_mode_has_nothing_critical(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        generator = train_a_gan(1500, 1e-3)
    made = generator(torch.randn(2000, 16)).detach()
    near = made[(made.norm(dim=1) - 2).abs() < 0.5]
    nearest = (torch.atan2(near[:, 1], near[:, 0]) / (2 * torch.pi / MODES)).round().long() % MODES
    assert len(set(nearest.tolist())) == MODES
    assert critical(flown) == []
    assert diagnosis_of(recorded(flown)).outcome not in ("diverged", "broken")


@pytest.mark.slow
def test_a_gan_that_diverges_is_found(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        train_a_gan(600, 0.1)
    assert "divergence" in critical(flown)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ("aaaa", False),
        ("aabb", False),
        ("abcc", False),
        ("aabbaa", False),
        ("abab", False),
        ("ababab", True),
        ("aaabbaabba", False),
        ("aabbaabbaabb", True),
        ("abcabca", True),
    ],
)
def test_trainings_take_turns_where_losses_come_again_after_others_four_times(places: str, expected: bool) -> None:
    turns = AlternatingLosses()
    for place in places:
        turns.take(place)
    assert turns.alternate is expected
    steps = [[step for step, value in enumerate(places) if value == place] for place in sorted(set(places))]
    assert take_turns(steps) is expected
