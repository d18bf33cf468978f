from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from figures.attention import attention
from figures.drawings import curve, cut_off, overlapping_labels, pixels, texts
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mlflow_stability.figures.attention_comparison import attention_comparison
from mlflow_stability.figures.attention_entropy import (
    LayerEntropy,
    attention_entropy,
    entropy_at,
    entropy_height,
    entropy_norm,
)
from mlflow_stability.figures.attention_heatmap import HIDDEN, HIDDEN_NAME, NOT_FINITE_NAME, attention_heatmap
from mlflow_stability.figures.style import BAD, sharp_png

LONG = "model.module.text_model.encoder.layers.11.self_attn.a_name_that_goes_on.and_on.and_ever_$x^{$"


def in_picture(figure: Figure, colour: str) -> int:
    bytes_of = [round(value * 255) for value in matplotlib.colors.to_rgb(colour)]
    return int((pixels(figure) == bytes_of).all(axis=-1).sum())


def is_legible(figure: Figure) -> bool:
    return cut_off(figure) == [] and overlapping_labels(figure) == []


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "shape"), [(1, (8, 8)), (3, (1, 1)), (8, (64, 7)), (32, (20, 64))])
def test_heads_of_any_number_and_shape_are_legible(heads: int, shape: tuple[int, int]) -> None:
    kind = "self" if shape[0] == shape[1] else "cross"
    figure = attention_heatmap(attention(heads, *shape, kind=kind, layer=LONG, tokens=(2048, 2048)), "36 of 48 layers")
    assert is_legible(figure)
    assert len([text for text in texts(figure) if text.startswith("head ")]) == heads
    assert figure.get_size_inches()[1] < 12


@pytest.mark.slow
def test_the_picture_names_its_subject() -> None:
    figure = attention_heatmap(attention(8, 64, 64, all_heads=32, causal=True, tokens=(512, 512), step=12_000))
    text = " ".join(texts(figure))
    for words in ("transformer.h.0.attn", "step 12,000", "self-attention, causal", "first 64 of 512 tokens"):
        assert words in text
    assert "8 of 32 heads" in text
    assert {"query position", "key position", "weight", "mean of 32"} <= set(texts(figure))
    cross = " ".join(texts(attention_heatmap(attention(4, 20, 64, kind="cross", tokens=(20, 512)))))
    assert "cross-attention · all 20 queries, first 64 of 512 keys" in cross


def test_a_long_line_keeps_its_numbers_and_shortens_the_name_of_the_run() -> None:
    cross = attention(4, 20, 64, kind="cross", tokens=(20, 512), layer=LONG)
    name = "a run with a fairly long and descriptive name, sequence to sequence, second attempt"
    figure = attention_heatmap(cross, "12 of 24 layers drawn", name)
    (line,) = [text for text in texts(figure) if text.startswith("step 500")]
    score = f"largest score {float(cross.max_logit.max()):.4g}"
    assert line.startswith(f"step 500 · cross-attention · all 20 queries, first 64 of 512 keys · {score} · ")
    assert " · 12 of 24 layers drawn" in line
    short = " ".join(texts(attention_heatmap(attention(2), name="a run with a fairly long name")))
    assert short.count("a run with a fairly long name") == 1


def test_each_weight_has_its_colour_where_its_query_and_key_are() -> None:
    weights = np.zeros((2, 4, 4), np.float16)
    weights[1, 3, 0] = 1.0
    figure = attention_heatmap(replace(attention(2, 4, 4), weights=weights, average=weights.mean(0, dtype=np.float32)))
    cells = np.asarray(figure.axes[2].images[0].get_array())
    assert (cells[3, 0] != cells[0, 0]).any()
    assert (cells.reshape(-1, 3)[[0, 1, 2, 3, 4, 13]] == cells[0, 0]).all()
    assert "head 1" in figure.axes[2].get_title("left")


@pytest.mark.slow
def test_masked_weights_and_non_finite_weights_have_different_colours() -> None:
    plain = attention_heatmap(attention(4, 16, 16))
    assert in_picture(plain, HIDDEN) < 1000  # the edges of letters
    assert in_picture(plain, BAD) == 0
    causal = attention_heatmap(attention(4, 16, 16, causal=True))
    assert HIDDEN_NAME in texts(causal)
    assert in_picture(causal, HIDDEN) > 10_000
    weights = attention(4, 16, 16).weights.copy()
    weights[2] = np.nan
    broken = attention_heatmap(replace(attention(4, 16, 16), weights=weights))
    assert NOT_FINITE_NAME in texts(broken)
    assert in_picture(broken, BAD) > 10_000


def test_the_title_of_a_collapsed_head_is_highlighted() -> None:
    entropy = np.array([0.8, 0.01, 0.8, np.nan], np.float32)
    figure = attention_heatmap(replace(attention(4), entropy=entropy))
    colours = {axes.get_title("left"): axes.title.get_color() for axes in figure.axes}
    titles = {axes.get_title("left"): axes._left_title.get_color() for axes in figure.axes}  # type: ignore[attr-defined]
    assert titles["head 1 · 0.01"] == BAD
    assert titles["head 0 · 0.80"] != BAD
    assert "head 3 · not finite" in colours


def test_the_picture_of_a_layer_without_tokens_says_so() -> None:
    empty = replace(attention(2), weights=np.zeros((2, 0, 0), np.float16), average=np.zeros((0, 0), np.float32))
    assert "no tokens" in texts(attention_heatmap(empty))


@pytest.mark.slow
def test_the_file_has_three_hundred_dots_per_inch() -> None:
    figure = attention_heatmap(attention(2))
    picture = matplotlib.image.imread(BytesIO(sharp_png(figure)), format="png")
    assert picture.shape[1] == 3000
    assert picture.shape[0] == pytest.approx(300 * figure.get_size_inches()[1], abs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "shape"), [(1, (8, 8)), (32, (20, 64))])
def test_two_runs_are_legible_side_by_side(heads: int, shape: tuple[int, int]) -> None:
    maps = [attention(heads, *shape, layer=LONG, seed=seed, step=500 * (seed + 1)) for seed in range(2)]
    figure = attention_comparison(maps[0], maps[1], ("a run with a long name that goes on", "3f2a9c0b" * 4))
    assert is_legible(figure)
    assert "steps 500 and 1,000" in " ".join(texts(figure))
    assert figure.get_size_inches()[1] < 14


@pytest.mark.slow
def test_two_runs_share_a_scale_and_the_heads_that_differ_most_are_shown() -> None:
    attention_map = attention(8)
    weights = attention_map.weights.copy()
    weights[5] = np.eye(8)
    figure = attention_comparison(attention_map, replace(attention_map, weights=weights), ("a", "b"))
    assert "head 5" in texts(figure)
    assert "the 4 heads that differ most" in " ".join(texts(figure))
    same = attention_comparison(attention_map, attention_map, ("a", "b"))
    left, right, difference = (np.asarray(axes.images[0].get_array()) for axes in same.axes[:3])
    assert (left == right).all()
    assert len(np.unique(difference.reshape(-1, 3), axis=0)) == 1


@pytest.mark.slow
def test_two_runs_of_other_lengths_and_heads_are_cut_to_what_both_have() -> None:
    figure = attention_comparison(attention(8, 16, 16), attention(4, 8, 8, seed=1), ("a", "b"))
    assert "the 4 heads that both have · cut to 8 × 8" in " ".join(texts(figure))
    assert is_legible(figure)


def entropies(layers: int, heads: int, steps: int, low: float = 0.4) -> list[LayerEntropy]:
    dice = np.random.default_rng(0)
    where = np.arange(1, steps + 1) * 500
    return [
        LayerEntropy(
            f"transformer.h.{layer}.attn",
            tuple(range(heads)),
            tuple(
                curve("attention_entropy", dice.uniform(low, 1, steps), where, place=f"{layer}.head_{head}")
                for head in range(heads)
            ),
        )
        for layer in range(layers)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads", "steps"), [(1, 1, 1), (1, 32, 20), (12, 8, 1), (48, 32, 20)])
def test_the_entropy_of_any_number_of_heads_is_legible(layers: int, heads: int, steps: int) -> None:
    figure = attention_entropy(entropies(layers, heads, steps), "Entropy of attention heads", "gpt-small")
    assert is_legible(figure)
    assert figure.get_size_inches()[1] < 12
    assert "collapsed: below 0.05" in texts(figure)


@pytest.mark.slow
def test_the_module_that_contains_all_layers_is_named_once() -> None:
    words = " ".join(texts(attention_entropy(entropies(24, 4, 3), "Entropy of attention heads", "gpt-small")))
    assert "24 layers, all in transformer.h · 4 heads" in words
    assert "transformer.h.0.attn" in " ".join(texts(attention_entropy(entropies(1, 4, 3), "x")))


@pytest.mark.parametrize("ends", [(0.95, 0.99), (0.01, 0.05)])
def test_heads_of_nearly_equal_extreme_entropies_have_different_heights_and_colours(ends: tuple[float, float]) -> None:
    low, high = entropy_height(ends)
    assert high - low > 0.08
    colours = matplotlib.colormaps["viridis"](entropy_norm()(np.array(ends)))[:, :3]
    assert np.abs(colours[0] - colours[1]).max() > 0.1


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_higher_entropy_is_drawn_higher(expected: float, other: float) -> None:
    heights = entropy_height([expected, other])
    assert (heights >= 0).all()
    assert (heights <= 1).all()
    assert (expected <= other) <= bool(heights[0] <= heights[1])
    assert entropy_at(heights) == pytest.approx([expected, other], abs=1e-9)


def test_entropies_of_zero_and_one_are_at_the_ends_of_the_axis() -> None:
    assert entropy_height([0.0, 0.5, 1.0]).tolist() == [0.0, 0.5, 1.0]


def test_few_heads_are_lines_and_many_are_colours() -> None:
    lines = attention_entropy(entropies(2, 4, 20), "x").axes
    assert [len(axes.lines) for axes in lines] == [4, 4]
    assert len(attention_entropy(entropies(2, 12, 20), "x").axes[0].images) == 1


def test_a_collapsed_head_is_marked_among_many() -> None:
    assert in_picture(attention_entropy(entropies(1, 12, 50), "x"), BAD) < 1000  # the legend
    assert in_picture(attention_entropy(entropies(1, 12, 50, low=0.0), "x"), BAD) > 5000


@pytest.mark.slow
def test_layers_that_are_left_out_are_counted_in_the_picture() -> None:
    figure = attention_entropy(entropies(50, 1, 2), "x")
    assert "2 layers left out" in " ".join(texts(figure))


def test_a_line_is_interrupted_where_the_training_was_rolled_back() -> None:
    back = curve("attention_entropy", [0.9, 0.8, 0.85, 0.7], [500, 1000, 500, 1000], [0, 0, 1, 1])
    (line,) = attention_entropy([LayerEntropy("h.0", (0,), (back,))], "x").axes[0].lines
    assert np.isnan(np.asarray(line.get_ydata())).sum() == 1


def test_a_picture_without_measurements_says_not_measured() -> None:
    assert "not measured" in texts(attention_entropy([], "x"))
