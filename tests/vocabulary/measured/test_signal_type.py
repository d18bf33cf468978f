from __future__ import annotations

from importlib import import_module

import pytest
from architecture.repository import PACKAGE

from mlflow_stability.kinds.panel import BY_LAYER
from mlflow_stability.vocabulary.measured.signal_type import FOLDERS, modules_with, signal_types, type_of
from mlflow_stability.vocabulary.text.recorded_keys import MAIN_CHARTS, TOPICS


@pytest.mark.parametrize("name", modules_with("SIGNALS"))
def test_what_is_read_of_a_file_is_what_it_defines_when_it_runs(name: str) -> None:
    declared = import_module(name).SIGNALS
    assert declared == tuple(signal_types()[signal.quantity] for signal in declared)


def test_every_measuring_file_is_checked_and_no_signal_is_declared_twice() -> None:
    declared = [signal.quantity for name in modules_with("SIGNALS") for signal in import_module(name).SIGNALS]
    assert len(declared) == len(set(declared)) == len(signal_types()) > 100
    assert all((PACKAGE / folder).is_dir() for folder in FOLDERS)


def test_every_signal_has_a_section_that_there_is_and_the_first_charts_are_declared() -> None:
    assert {item.topic for item in signal_types().values()} <= set(TOPICS)
    assert set(MAIN_CHARTS) <= set(signal_types())


def test_what_detectors_judge_by_layer_is_measured_by_layer() -> None:
    assert all(signal_types()[item].by_layer for item in BY_LAYER)


def test_a_derived_name_has_the_type_of_what_it_is_derived_from() -> None:
    assert type_of("activation_dead_max") == signal_types()["activation_dead"]
    assert type_of("loss_max") == signal_types()["loss_max"]
    assert type_of("nothing_like_it") is None
