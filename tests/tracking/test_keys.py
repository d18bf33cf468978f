import posixpath
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from mlflow_stability.tracking.keys import fitting_keys, metric_key, parse_key, prefix_of
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import signal_types
from mlflow_stability.vocabulary.text.recorded_keys import KEYS, LAYERS, MAIN_CHARTS, OLD_KEYS, TOPICS, chart_order

FIXTURES = Path(__file__).parents[2] / "mlruns_fixtures"

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_\-]{0,30}", fullmatch=True)
places = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,30}", fullmatch=True)
anything = st.text(min_size=1, max_size=400)
MLFLOW_TAKES = re.compile(r"^[/\w.\- ]*$")


@given(names, st.one_of(st.just(""), places))
def test_a_key_gives_its_signal_back(quantity, place):
    signal = Signal(quantity, place)
    assert parse_key(metric_key(signal)) == ("stability", signal)


@given(anything, st.one_of(st.just(""), anything))
def test_whatever_a_module_is_called_every_store_takes_the_key(quantity, place):
    key = metric_key(Signal(quantity, place))
    assert len(key) <= 250
    assert MLFLOW_TAKES.match(key)
    assert posixpath.normpath(key) == key
    assert parse_key(key) is not None


@given(st.lists(st.builds(Signal, anything, st.one_of(st.just(""), anything)), min_size=2, max_size=8, unique=True))
def test_two_signals_never_share_a_key_and_no_key_is_a_folder_of_another(signals):
    keys = [metric_key(signal) for signal in signals]
    assert len(set(keys)) == len(keys)
    assert not any(other.startswith(f"{key}/") for key in keys for other in keys)


def test_main_charts_are_in_the_first_section_and_reports_keep_their_order():
    keys = [metric_key(Signal(quantity)) for quantity in MAIN_CHARTS]
    assert keys == [f"stability/{quantity}" for quantity in MAIN_CHARTS]
    others = ["accuracy", "stability/timing/step_time"]
    assert sorted([*others, *reversed(keys)], key=chart_order) == [*keys, *others]


def test_no_section_is_called_like_a_main_chart():
    assert not {*TOPICS, LAYERS} & {*MAIN_CHARTS}


def test_further_sections_say_what_they_hold():
    assert metric_key(Signal("adam_rms")) == "stability/optimizer/adam_rms"
    assert metric_key(Signal("step_time_max")) == "stability/timing/step_time_max"
    assert metric_key(Signal("host_memory")) == "stability/memory/host_memory"
    assert metric_key(Signal("tokens_per_second")) == "stability/throughput/tokens_per_second"
    assert metric_key(Signal("loss_scale")) == "stability/optimizer/loss_scale"
    assert metric_key(Signal("loss_ema")) == "stability/loss_statistics/loss_ema"
    assert metric_key(Signal("attention_entropy", "blocks.0")) == "stability/attention/attention_entropy.blocks.0"
    assert metric_key(Signal("sdr_bit_usage", "encoder")) == "stability/representations/sdr_bit_usage.encoder"
    assert metric_key(Signal("activation_dead_max")) == "stability/activations/activation_dead_max"
    assert metric_key(Signal("learning_rate", "group_1")) == "stability/optimizer/learning_rate.group_1"
    assert metric_key(Signal("grad_norm", "blocks.0.attn")) == "stability/layers/grad_norm/blocks.0.attn"


def test_a_second_training_has_one_section():
    keys = [metric_key(Signal(quantity, "track_critic")) for quantity in ("loss", "adam_rms", "step_time")]
    assert keys == [f"stability/track_critic/{name}" for name in ("loss", "adam_rms", "step_time")]


OLD = {
    "stability/1_loss": ("stability", Signal("loss")),
    "stability_2/8_skipped_steps": ("stability_2", Signal("skipped_steps")),
    "stability/track_critic/1_loss": ("stability", Signal("loss", "track_critic")),
    "stability/loss/loss_ema": ("stability", Signal("loss_ema")),
    "stability/loss/loss_ema.group_1": ("stability", Signal("loss_ema", "group_1")),
    "stability/step_time": ("stability", Signal("step_time")),
    "stability_2/loss_by_group/track_1": ("stability_2", Signal("loss", "track_1")),
    "stability/grad_norm_by_layer/blocks.3": ("stability", Signal("grad_norm", "blocks.3")),
    "stability/learning_rate_by_group/group_1": ("stability", Signal("learning_rate", "group_1")),
}


@pytest.mark.parametrize("key", [*OLD, *OLD_KEYS])
def test_keys_of_older_versions_are_read(key):
    assert set(OLD_KEYS) <= set(OLD)
    assert parse_key(key) == OLD[key]


@pytest.mark.parametrize("key", KEYS)
def test_each_kind_of_key_is_written_as_its_example(key):
    parsed = parse_key(key)
    assert parsed is not None
    assert metric_key(parsed[1], parsed[0]) == key


def test_every_key_of_a_recorded_run_is_read():
    """Runs 0 were recorded by version 0.1, runs 1 with numbered keys."""
    files = {path for path in FIXTURES.glob("[01]/*/metrics/**/*") if path.is_file()}
    keys = {path.as_posix().partition("/metrics/")[2] for path in files}
    assert {"stability/step_time", "stability/1_loss", "stability/loss/loss_ema"} <= keys
    quantities = [parsed[1].quantity if (parsed := parse_key(key)) else key for key in keys - {"val_loss"}]
    over_layers = re.compile("_(?:mean|max)$")
    assert all({name, over_layers.sub("", name)} & set(signal_types()) for name in quantities)


def test_a_second_recording_has_a_prefix_of_its_own():
    assert prefix_of(1) == "stability"
    assert parse_key(metric_key(Signal("loss"), prefix_of(2))) == ("stability_2", Signal("loss"))


def test_the_keys_of_others_are_not_ours():
    assert parse_key("loss") is None
    assert parse_key("system/cpu") is None
    assert parse_key("stability/a/b") is None


def test_no_fitting_key_looks_like_a_path_out_of_its_folder():
    keys = fitting_keys(["..loss", "_.loss", "...", "a" * 247 + "/..x"])
    assert len(set(keys.values())) == 4
    for key in keys.values():
        _validate_metric_name(key)
