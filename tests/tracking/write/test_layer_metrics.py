"""Layers become metrics only where they were asked for, and then by block or one by one."""

from __future__ import annotations

import math

import pytest

from mlflow_stability.tracking.thinning import Thinner, block_of, chosen_signals
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

SIGNALS = (
    Signal("loss"),
    Signal("learning_rate", "group_1"),
    Signal("grad_norm", "blocks.0.attn"),
    Signal("grad_norm", "blocks.0.mlp"),
    Signal("grad_norm", "head"),
    Signal("update_ratio", "blocks.0.attn"),
    Signal("update_ratio", "blocks.0.mlp"),
)
VALUES = (2.0, 0.1, 3.0, 4.0, 1.0, 0.01, 0.03)


def test_no_layer_becomes_a_metric_unless_it_is_asked_for() -> None:
    assert [signal.signal for signal in chosen_signals(SIGNALS, "")] == list(SIGNALS[:2])


def test_norms_of_a_block_add_as_norms_do_and_ratios_are_averaged() -> None:
    by_key = {str(signal.signal): signal.value(VALUES) for signal in chosen_signals(SIGNALS, "blocks")}
    assert by_key["grad_norm@blocks.0"] == pytest.approx(5.0)
    assert by_key["grad_norm@head"] == 1.0
    assert by_key["update_ratio@blocks.0"] == pytest.approx(0.02)
    assert math.isnan(chosen_signals(SIGNALS, "blocks")[2].value((*VALUES[:2], math.nan, *VALUES[3:])))


def test_all_layers_can_be_had() -> None:
    assert [signal.signal for signal in chosen_signals(SIGNALS, "parameters")] == list(SIGNALS)


@pytest.mark.parametrize(
    ("place", "block"),
    [
        ("transformer.h.3.attn.proj", "transformer.h.3"),
        ("head", "head"),
        ("encoder.norm", "encoder.unnumbered"),
        ("encoder.embeddings.word", "encoder.unnumbered"),
        ("0.weight", "0"),
    ],
)
def test_the_block_of_a_layer_ends_with_its_first_number_and_never_reads_as_all_of_a_model(
    place: str, block: str
) -> None:
    assert block_of(place) == block


def test_thinning_keeps_every_measurement_of_a_layer_that_is_measured_seldom() -> None:
    thinner = Thinner(10, "blocks")
    points = [
        point
        for step in range(1, 301)
        for point in thinner.points(
            StepReading(step, SIGNALS, VALUES) if step % 100 == 0 else StepReading(step, SIGNALS[:1], VALUES[:1])
        )
    ]
    assert [point.step for point in points if str(point.signal) == "grad_norm@blocks.0"] == [100, 200, 300]


def test_modules_with_sparse_codes_have_five_charts_counted_against_the_inputs_that_differ() -> None:
    quantities = ("sdr_rows", "sdr_active_bits", "sdr_input_ratio", "sdr_unique_ratio", "sdr_bit_usage", "sdr_overlap")
    signals = tuple(Signal(quantity, "encoder") for quantity in quantities)
    values = (384.0, 8.0, 0.2, 0.1, 0.7, 1.5)
    by_key = {str(signal.signal): signal.value(values) for signal in chosen_signals(signals, "")}
    assert by_key == {
        "sdr_active_bits@encoder": 8.0,
        "sdr_unique_ratio@encoder": pytest.approx(0.5),
        "sdr_bit_usage@encoder": 0.7,
    }


def test_of_many_modules_with_sparse_codes_four_are_drawn() -> None:
    signals = tuple(Signal("sdr_unique_ratio", f"blocks.{number}") for number in range(16))
    places = [signal.signal.place for signal in chosen_signals(signals, "")]
    assert places == ["blocks.0", "blocks.5", "blocks.10", "blocks.15"]


def test_dead_and_saturated_units_have_their_mean_and_maximum_over_all_layers() -> None:
    signals = (*(Signal("activation_dead", letter) for letter in "abc"), Signal("activation_saturation", "d"))
    values = (0.0, 0.25, 0.5, 0.125)
    by_key = {str(signal.signal): signal.value(values) for signal in chosen_signals(signals, "")}
    assert by_key == {
        "activation_dead_mean": 0.25,
        "activation_dead_max": 0.5,
        "activation_saturation_mean": 0.125,
        "activation_saturation_max": 0.125,
    }
