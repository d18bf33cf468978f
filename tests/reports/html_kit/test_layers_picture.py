from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reports.comparisons import two_with_layers

from mlflow_stability.reports.comparison_phrases import layer_difference, two_names
from mlflow_stability.reports.html_kit.layers_picture import (
    ABSENT,
    NOT_FINITE,
    ZERO,
    LayersPicture,
    data_address,
    layers_picture_of,
    png_of,
)
from mlflow_stability.reports.html_kit.pages import comparison_page as render
from mlflow_stability.vocabulary.measured.layer_comparison import LargestGap, LayerComparison

NAMES = ("calm", "wild")


def pictures() -> tuple[LayersPicture, LayersPicture]:
    norms, entropies = (layers_picture_of(each, NAMES) for each in two_with_layers().layers)
    return norms, entropies


def pixels(address: str) -> np.ndarray:
    head, _, data = address.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def one(cells: list[list[float]], **more: object) -> LayerComparison:
    values = np.array(cells, np.float32)
    layers = tuple(f"layer{number}" for number in range(len(cells)))
    return LayerComparison("grad_norm", layers, 0, 1, (0, 0), False, values, values, **more)  # type: ignore[arg-type]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_what_is_written_as_png_is_read_back_the_same(rows: int, columns: int, seed: int) -> None:
    made = np.random.default_rng(seed).integers(0, 256, (rows, columns, 4), np.uint8)
    assert (np.asarray(Image.open(io.BytesIO(png_of(made)))) == made).all()
    assert (pixels(data_address(made)) == made).all()


def test_a_pixel_is_a_cell_and_missing_values_have_their_own_colours() -> None:
    norms, _ = pictures()
    calm, wild = (pixels(heat.address) for heat in norms.heats)
    assert calm.shape == wild.shape == (30, 60, 4)
    assert (calm[..., 3] == 255).all()
    assert (wild[5, :10, 3] == 0).all()  # not measured
    assert (wild[3:, 50:] == (*NOT_FINITE, 255)).all()
    assert (wild[0] == (*ZERO, 255)).all()
    assert set(norms.special) == {"not finite", "zero", "not measured"}


def test_equal_values_have_equal_colours_in_both_runs_and_higher_ones_are_lighter() -> None:
    calm, wild = (pixels(heat.address) for heat in pictures()[0].heats)
    assert (calm[7, :30] == wild[7, :30]).all()
    assert wild[7, 49, :3].sum() > wild[7, 40, :3].sum() > calm[7, 40, :3].sum()


def test_a_collapsed_head_is_dark_and_no_zero() -> None:
    _, entropies = pictures()
    wild = pixels(entropies.heats[1].address)
    assert wild[2, 40].tolist() == [68, 1, 84, 255]
    assert entropies.special == ()
    assert entropies.title == "Attention entropy by head"


@pytest.mark.parametrize("count", [1, 2, 30, 100, 1000])
def test_names_of_rows_do_not_lie_on_each_other(count: int) -> None:
    picture = layers_picture_of(one([[1.0]] * count), NAMES)
    places = [tick.at for tick in picture.rows]
    assert 0 < places[0] <= places[-1] < 100
    gaps = np.diff(places) / 100 * picture.height
    assert len(gaps) == 0 or gaps.min() > 0.7
    assert picture.height <= 30


def test_where_they_differ_most_is_a_sentence() -> None:
    norms, entropies = two_with_layers().layers
    said = layer_difference(norms, NAMES)
    assert "40 to 49 steps after the onset: 0.1 in calm, 900 in wild (9000 times)." in said
    assert "Not finite in 27 layers of wild, first in model.blocks.1.attn 200 to 209 steps after the onset." in said
    assert "in the first 10 steps from the onset: 2.9 in calm, 0 in wild." in layer_difference(entropies, NAMES)
    assert layer_difference(one([[np.nan]]), NAMES) == "No layer has values of both runs at the same step."


def test_a_column_is_described_by_the_steps_that_the_runs_have_in_it() -> None:
    norms = two_with_layers().layers[0]
    ended = replace(norms, spans=((-300, 243), (-300, 244)))
    assert "40 to 44 steps after the onset" in layer_difference(replace(ended, spans=((-300, 43), (-300, 44))), NAMES)
    assert "first in model.blocks.1.attn 200 to 209 steps" in layer_difference(ended, NAMES)
    unaligned = replace(norms, aligned=False, begin=0, farthest=replace(norms.farthest, offset=150))  # type: ignore[type-var]
    assert "at step 150:" in layer_difference(replace(unaligned, spans=((1, 150), (1, 150))), NAMES)
    assert "within steps 150 to 155:" in layer_difference(replace(unaligned, spans=((1, 150), (1, 155))), NAMES)


def test_a_run_has_its_place_in_the_plane_and_layers_that_it_lacks_are_absent() -> None:
    norms = two_with_layers().layers[0]
    picture = layers_picture_of(
        replace(norms, spans=((-300, -1), (-300, 299)), absent=(frozenset(), frozenset(norms.layers[5:6]))), NAMES
    )
    calm, wild = picture.heats
    assert (calm.left, calm.width) == (0.0, 50.0)
    assert (wild.left, wild.width) == (0.0, 100.0)
    assert pixels(calm.address).shape == (30, 30, 4)
    assert (pixels(wild.address)[5, :50] == (*ABSENT, 255)).all()
    assert picture.special == ("not finite", "zero", "absent layer", "outside of the run")
    assert picture.measure == "gradient norm"


def test_the_page_says_which_step_the_onset_is() -> None:
    found = two_with_layers()
    layers = tuple(replace(each, zeros=(300, 300), onsets=(None, 300)) for each in found.layers)
    page = render(replace(found, layers=layers))
    assert page.count("from step 300, the onset of the other run") == 2
    assert page.count("from the onset, step 300") == 2


def test_the_page_has_both_runs_of_each_quantity_and_no_name_becomes_structure() -> None:
    page = render(two_with_layers())
    assert page.count('src="data:image/png;base64,') == 4
    assert page.count("img-src data:") == 1
    assert "<script" not in page
    assert "aligned" in page


def test_runs_with_the_same_name_are_distinguished_by_their_ids() -> None:
    found = two_with_layers()
    runs = [replace(e, card=replace(e.card, name="x", source=i)) for e, i in zip(found.runs, "ab", strict=True)]
    alike = replace(found, runs=tuple(runs))
    assert two_names(alike) == ("a", "b")
    assert two_names(found)[0] == "calm"


def test_models_without_a_common_layer_have_none_in_common() -> None:
    apart = one([[1.0], [2.0]], absent=(frozenset({"layer0"}), frozenset({"layer1"})))
    assert layer_difference(apart, NAMES) == "The runs have no layer in common."
    never = one([[1.0], [2.0]], absent=(frozenset({"layer0"}), frozenset()))
    assert layer_difference(never, NAMES) == "No layer has values of both runs at the same step."


def test_two_identical_runs_are_reported_as_identical() -> None:
    same = one([[1.0], [2.0]], farthest=LargestGap("layer0", 0, 1.0, 1.0))
    assert layer_difference(same, NAMES) == "Identical in every layer where both were measured."
