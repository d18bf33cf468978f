from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor

from mlflow_stability import attention_entropy_plot, attention_heatmap, compare_attention
from mlflow_stability.analysis.attention import entropy_by_position, maps_of_weights
from mlflow_stability.errors import SettingsError
from mlflow_stability.probes.inside.attention_scores import ScriptScores, head_numbers

PNG = b"\x89PNG"


def weights_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True).softmax(-1)


def texts(picture: Figure) -> str:
    return " ".join(item.get_text() for item in picture.findobj(Text) if isinstance(item, Text))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 6), (2, 4, 6, 9)])
def test_a_tensor_of_weights_is_drawn_and_saved_with_its_title(shape: tuple[int, ...], tmp_path: Path) -> None:
    weights, others = weights_of(*shape), weights_of(*shape, seed=1)
    paths = [tmp_path / f"{name}.png" for name in ("heatmap", "comparison", "entropy")]
    pictures = (
        attention_heatmap(weights, title="layer 3 of mine", save_path=paths[0]),
        compare_attention(weights, others, title="layer 3 of mine", save_path=paths[1]),
        attention_entropy_plot({10: weights, 20: others}, title="layer 3 of mine", save_path=paths[2]),
    )
    for picture, path in zip(pictures, paths, strict=True):
        assert "layer 3 of mine" in texts(picture)
        assert path.read_bytes().startswith(PNG)


@pytest.mark.slow
def test_a_list_has_a_tensor_for_each_layer() -> None:
    layers = tuple(weights_of(2, 4, 6, 6, seed=number) for number in range(3))
    assert "layer 2" in texts(attention_heatmap(layers, layer=2))
    assert "layer 1" in texts(compare_attention(layers, layers[::-1], layer=1))
    panels = texts(attention_entropy_plot(layers))
    assert all(f"layer {number}" in panels for number in range(3))
    with pytest.raises(SettingsError, match="There is no layer 7"):
        attention_heatmap(layers, layer=7)


@pytest.mark.slow
def test_two_tensors_are_named_in_the_title_and_above_their_panels() -> None:
    first, other = weights_of(4, 6, 6), weights_of(4, 6, 6, seed=1)
    assert "Attention of first map and second map" in texts(compare_attention(first, other))
    words = texts(compare_attention(first, other, title_a="before", title_b="after"))
    assert "Attention of before and after" in words
    assert "two runs" not in words
    assert "layer 1" in texts(compare_attention([first, other], [other, first], layer=1))


def test_entropy_is_that_of_the_weights() -> None:
    def entropy_of(weights: object) -> object:
        return maps_of_weights(weights)[0].entropy

    assert entropy_of(np.full((1, 3, 4), 0.25)) == pytest.approx([1.0])
    assert entropy_of(torch.eye(4)[None]) == pytest.approx([0.0])
    assert maps_of_weights(torch.eye(4))[0].causal
    allowed = torch.ones(5, 5).tril()
    assert entropy_of(allowed / allowed.sum(-1, keepdim=True)) == pytest.approx([1.0])
    lines = attention_entropy_plot({0: torch.eye(4), 5: torch.full((4, 4), 0.25)}).axes[0].lines
    assert lines[0].get_xdata() == pytest.approx([0, 5])


def test_weights_of_one_step_have_an_entropy_for_each_position() -> None:
    allowed = torch.ones(6, 6).tril()
    uniform, narrow = allowed / allowed.sum(-1, keepdim=True), torch.eye(6)
    picture = attention_entropy_plot(torch.stack([uniform, narrow]))
    lines = picture.axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3, 4, 5]] * 2  # the first query has no choice
    assert lines[0].get_ydata() == pytest.approx(np.ones(5))
    assert lines[1].get_ydata() == pytest.approx(np.zeros(5))
    assert "query position" in texts(picture)
    assert "query position" not in texts(attention_entropy_plot({3: uniform}))


def test_the_mean_over_positions_is_the_entropy_of_the_head() -> None:
    weights = weights_of(2, 4, 6, 9)
    (layer,) = entropy_by_position(weights)
    means = [curve.mean.mean() for curve in layer.curves]
    assert means == pytest.approx(maps_of_weights(weights)[0].entropy, rel=1e-5)


def test_entropy_is_what_a_recording_measures() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(3, 2, 6, 8), torch.randn(3, 2, 6, 8)
    masked = (query @ key.transpose(-1, -2)).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    recorded = head_numbers(ScriptScores(masked))[0]
    assert maps_of_weights(masked.softmax(-1))[0].entropy == pytest.approx(recorded.numpy(), rel=1e-5)


@pytest.mark.parametrize("draw", [attention_heatmap, attention_entropy_plot])
def test_what_is_no_map_is_refused(draw: object) -> None:
    assert callable(draw)
    with pytest.raises(SettingsError, match=r"^run_id_or_path.* must be .* a tensor of weights; got 3\.0"):
        draw(3.0)
    with pytest.raises(SettingsError, match=r"^run_a must be .* a tensor of weights"):
        compare_attention(torch.ones(3), torch.ones(3))
