import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.tracking.keys import metric_key, parse_key, section_of
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.text.recorded_keys import MAIN

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


def test_the_charts_that_matter_are_numbered_and_the_loss_is_the_first():
    assert metric_key(Signal("loss")) == "stability/1_loss"
    first = sorted(metric_key(Signal(quantity)) for quantity in MAIN)
    assert first == [metric_key(Signal(quantity)) for quantity in MAIN]
    assert {key.rpartition("/")[0] for key in first} == {"stability"}


def test_further_sections_say_what_they_hold():
    assert metric_key(Signal("adam_rms")) == "stability/optimizer/adam_rms"
    assert metric_key(Signal("step_time_max")) == "stability/timing/step_time_max"
    assert metric_key(Signal("host_memory")) == "stability/memory/host_memory"
    assert metric_key(Signal("tokens_per_second")) == "stability/throughput/tokens_per_second"
    assert metric_key(Signal("loss_scale")) == "stability/optimizer/loss_scale"
    assert metric_key(Signal("loss_ema")) == "stability/loss/loss_ema"
    assert metric_key(Signal("attention_entropy", "blocks.0")) == "stability/attention/attention_entropy.blocks.0"
    assert metric_key(Signal("sdr_bit_usage", "encoder")) == "stability/representations/sdr_bit_usage.encoder"
    assert metric_key(Signal("activation_dead_max")) == "stability/activations/activation_dead_max"
    assert metric_key(Signal("learning_rate", "group_1")) == "stability/optimizer/learning_rate.group_1"
    assert metric_key(Signal("grad_norm", "blocks.0.attn")) == "stability/layers/grad_norm/blocks.0.attn"


def test_a_training_beside_the_first_has_one_section():
    keys = [metric_key(Signal(quantity, "track_critic")) for quantity in ("loss", "adam_rms", "step_time")]
    assert keys == [f"stability/track_critic/{name}" for name in ("1_loss", "adam_rms", "step_time")]


def test_keys_of_version_0_1_are_read():
    assert parse_key("stability/loss") == ("stability", Signal("loss"))
    assert parse_key("stability_2/loss_by_group/track_1") == ("stability_2", Signal("loss", "track_1"))
    assert parse_key("stability/grad_norm_by_layer/a.b") == ("stability", Signal("grad_norm", "a.b"))
    assert parse_key("stability/learning_rate_by_group/group_1") == ("stability", Signal("learning_rate", "group_1"))


def test_a_second_recording_has_a_section_of_its_own():
    assert section_of(1) == "stability"
    assert parse_key(metric_key(Signal("loss"), section_of(2))) == ("stability_2", Signal("loss"))


def test_the_keys_of_others_are_not_ours():
    assert parse_key("loss") is None
    assert parse_key("system/cpu") is None
    assert parse_key("stability/a/b") is None
