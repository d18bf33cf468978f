"""What a script takes for its default type of numbers changes nothing of what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from probes.looked_into import Row, looked_into, unguarded
from torch import Tensor, nn

from mlflow_stability.probes.inside.activation_probe import ActivationProbe
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.inside.representation_probe import RepresentationProbe
from mlflow_stability.probes.probe import ForwardProbe


@pytest.fixture(autouse=True)
def usual_type() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


class Winners(nn.Module):
    """Of each row the six largest."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.zeros_like(x).scatter(-1, x.topk(6, -1).indices, 1.0)
        return chosen + x - x.detach()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 128)
        self.act = nn.ReLU()
        self.codes = Winners()
        self.down = nn.Sequential(nn.Linear(128, 16), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(self.codes(self.act(self.up(x))))
        output: Tensor = nn.functional.scaled_dot_product_attention(x, x, x)
        return output


def probes() -> list[ForwardProbe]:
    return [
        ActivationProbe(unguarded),
        RepresentationProbe(unguarded, ["codes", "down"]),
        AttentionProbe(1, 8, unguarded, lambda _: None),
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_default_type_changes_no_number(dtype: torch.dtype) -> None:
    rows: list[Row] = []
    for default in (torch.float32, dtype):
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(3)
        model, given = Model(), torch.randn(4, 20, 16)
        torch.set_default_dtype(default)
        rows.append({})
        for probe in probes():
            rows[-1] |= looked_into(probe, model, given)[1]
    assert {"sdr_overlap", "activation_dead", "effective_rank", "collapsed_heads"} <= {
        name.partition("@")[0] for name in rows[0]
    }
    assert rows[0] == pytest.approx(rows[1], rel=1e-6, nan_ok=True)
