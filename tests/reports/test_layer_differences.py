from __future__ import annotations

from dataclasses import replace

import numpy as np
from reports.comparisons import two_with_layers

from mlflow_stability.reports.comparison_phrases import layer_difference, two_names
from mlflow_stability.reports.html_kit.pages import comparison_page as render
from mlflow_stability.vocabulary.measured.layer_comparison import LargestGap, LayerComparison

NAMES = ("calm", "wild")


def comparison_of(cells: list[list[float]], **more: object) -> LayerComparison:
    values = np.array(cells, np.float32)
    layers = tuple(f"layer{number}" for number in range(len(cells)))
    return LayerComparison("grad_norm", layers, 0, 1, (0, 0), False, values, values, **more)  # type: ignore[arg-type]


def test_where_they_differ_most_is_a_sentence() -> None:
    norms, entropies = two_with_layers().layers
    result = layer_difference(norms, NAMES)
    assert "40 to 49 steps after the onset: 0.1 in calm, 900 in wild (9000 times)." in result
    assert "Not finite in 27 layers of wild, first in model.blocks.1.attn 200 to 209 steps after the onset." in result
    assert "in the first 10 steps from the onset: 2.9 in calm, 0 in wild." in layer_difference(entropies, NAMES)
    assert layer_difference(comparison_of([[np.nan]]), NAMES) == "No layer has values of both runs at the same step."


def test_a_column_is_described_by_the_steps_that_the_runs_have_in_it() -> None:
    norms = two_with_layers().layers[0]
    ended = replace(norms, spans=((-300, 243), (-300, 244)))
    assert "40 to 44 steps after the onset" in layer_difference(replace(ended, spans=((-300, 43), (-300, 44))), NAMES)
    assert "first in model.blocks.1.attn 200 to 209 steps" in layer_difference(ended, NAMES)
    unaligned = replace(norms, aligned=False, begin=0, farthest=replace(norms.farthest, offset=150))  # type: ignore[type-var]
    assert "at step 150:" in layer_difference(replace(unaligned, spans=((1, 150), (1, 150))), NAMES)
    assert "within steps 150 to 155:" in layer_difference(replace(unaligned, spans=((1, 150), (1, 155))), NAMES)


def test_the_page_has_a_picture_of_each_quantity_and_no_name_becomes_structure() -> None:
    page = render(two_with_layers())
    assert page.count('src="data:image/png;base64,') == 2
    assert page.count("img-src data:") == 1
    assert "<script" not in page
    assert "aligned" in page


def test_runs_with_the_same_name_are_distinguished_by_their_ids() -> None:
    result = two_with_layers()
    runs = [replace(e, card=replace(e.card, name="x", source=i)) for e, i in zip(result.runs, "ab", strict=True)]
    alike = replace(result, runs=tuple(runs))
    assert two_names(alike) == ("a", "b")
    assert two_names(result)[0] == "calm"


def test_models_without_a_common_layer_have_none_in_common() -> None:
    apart = comparison_of([[1.0], [2.0]], absent=(frozenset({"layer0"}), frozenset({"layer1"})))
    assert layer_difference(apart, NAMES) == "The runs have no layer in common."
    never = comparison_of([[1.0], [2.0]], absent=(frozenset({"layer0"}), frozenset()))
    assert layer_difference(never, NAMES) == "No layer has values of both runs at the same step."


def test_two_identical_runs_are_reported_as_identical() -> None:
    same = comparison_of([[1.0], [2.0]], farthest=LargestGap("layer0", 0, 1.0, 1.0))
    assert layer_difference(same, NAMES) == "Identical in every layer where both were measured."
