from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlflow_stability import attention_heatmap
from mlflow_stability.analysis.attention import _map_of_weights
from mlflow_stability.errors import SettingsError


@pytest.mark.parametrize("shape", [(6, 6), (4, 6, 6), (2, 4, 6, 9)])
def test_a_tensor_of_weights_is_drawn_and_saved_with_its_title(shape: tuple[int, ...], tmp_path: Path) -> None:
    weights = torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True).softmax(-1)
    picture = attention_heatmap(weights, title="layer 3 of mine", save_path=tmp_path / "attention.png")
    texts = " ".join(each.get_text() for each in picture.findobj(lambda one: hasattr(one, "get_text")))
    assert "layer 3 of mine" in texts
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_entropy_is_that_of_the_weights() -> None:
    assert _map_of_weights(np.full((1, 3, 4), 0.25), 0, "a").entropy == pytest.approx([1.0])
    assert _map_of_weights(torch.eye(4)[None], 0, "a").entropy == pytest.approx([0.0])
    assert _map_of_weights(torch.eye(4), 0, "a").causal


def test_what_is_no_map_is_refused() -> None:
    with pytest.raises(SettingsError, match="takes a run id, a path, an AttentionMap, or a tensor of weights"):
        attention_heatmap(3.0)
