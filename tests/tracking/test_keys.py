import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.tracking.keys import metric_key, parse_key, section_of
from mlflow_stability.vocabulary.measured.signal import Signal

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,30}", fullmatch=True)
anything = st.text(min_size=1, max_size=400)
MLFLOW_TAKES = re.compile(r"^[/\w.\- ]*$")


@given(names.filter(lambda n: not n.endswith(("_by_layer", "_by_group"))), st.one_of(st.just(""), names))
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


def test_the_quantity_comes_before_the_place_so_that_mlflow_draws_one_section_for_it():
    assert metric_key(Signal("loss")) == "stability/loss"
    assert metric_key(Signal("grad_norm", "blocks.0.attn")) == "stability/grad_norm_by_layer/blocks.0.attn"
    assert metric_key(Signal("learning_rate", "group_1")) == "stability/learning_rate_by_group/group_1"
    assert metric_key(Signal("loss", "track_1")) == "stability/loss_by_group/track_1"
    assert metric_key(Signal("loss", "track_critic")) == "stability/loss_by_group/track_critic"


def test_a_quantity_that_looks_like_a_folder_of_places_is_not_its_own_folder():
    assert not metric_key(Signal("x", "a")).startswith(metric_key(Signal("x_by_layer")) + "/")


def test_a_second_recording_has_a_section_of_its_own():
    assert section_of(1) == "stability"
    assert parse_key(metric_key(Signal("loss"), section_of(2))) == ("stability_2", Signal("loss"))


def test_the_keys_of_others_are_not_ours():
    assert parse_key("loss") is None
    assert parse_key("system/cpu") is None
    assert parse_key("stability/a/b") is None
