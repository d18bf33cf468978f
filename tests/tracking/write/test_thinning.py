import json
import math

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.tracking.thinning import Thinner
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

LOSS, NORM, RATE, LAYER = (
    Signal("loss"),
    Signal("grad_norm"),
    Signal("learning_rate", "group_1"),
    Signal("grad_norm", "a"),
)
SIGNALS = (LOSS, NORM, RATE, LAYER)


def reading(step, loss=1.0, signals=SIGNALS):
    return StepReading(step, signals, (loss, 2.0, 0.1, 3.0)[: len(signals)], 0, float(step))


def steps_of(points, signal):
    return [point.step for point in points if point.signal == signal]


def test_the_first_value_is_kept_then_those_at_multiples():
    thinner = Thinner(10)
    points = [point for step in range(5, 41) for point in thinner.points(reading(step))]
    assert steps_of(points, LOSS) == [5, 10, 20, 30, 40]
    assert steps_of(points, RATE) == [5, 10, 20, 30, 40]
    assert steps_of(points, LAYER) == []


def test_a_marked_step_is_kept():
    thinner = Thinner(10)
    points = [point for step in range(1, 31) for point in thinner.points(reading(step), marked=step == 17)]
    assert steps_of(points, LOSS) == [1, 10, 17, 20, 30]


def test_many_events_do_not_prevent_thinning():
    thinner = Thinner(100)
    points = [point for step in range(1, 1001) for point in thinner.points(reading(step), marked=True)]
    assert len(steps_of(points, LOSS)) <= 10 * 11


def test_a_signal_that_is_measured_seldom_keeps_all_its_values():
    thinner, seldom = Thinner(80), Signal("param_norm")
    points = []
    for step in range(1, 501):
        signals = (*SIGNALS, seldom) if step % 100 == 0 else SIGNALS
        points += thinner.points(StepReading(step, signals, (1.0,) * len(signals), 0, step))
    assert steps_of(points, seldom) == [100, 200, 300, 400, 500]


def test_a_spike_between_two_points_is_seen_in_the_extremes_and_not_in_the_series():
    thinner = Thinner(10)
    points = [point for step in range(1, 31) for point in thinner.points(reading(step, 99.0 if step == 15 else 1.0))]
    values = {(point.signal, point.step): point.value for point in points}
    assert values[Signal("loss_max"), 20] == 99.0
    assert values[Signal("loss_max"), 30] == 1.0
    assert values[Signal("loss_min"), 20] == 1.0
    assert values[LOSS, 20] == 1.0


def test_what_is_not_finite_is_counted_because_charts_do_not_show_it():
    thinner = Thinner(10)
    points = [
        point for step in range(1, 21) for point in thinner.points(reading(step, math.nan if step in (3, 4) else 1.0))
    ]
    counted = {point.step: point.value for point in points if point.signal == Signal("nonfinite_values")}
    assert counted == {10: 2, 20: 2}
    assert all(math.isfinite(point.value) for point in points)


def gan(steps):
    """The halves of a GAN step in turns; the second one comes last."""
    first, second = (LOSS, NORM), (Signal("loss", "track_1"), Signal("grad_norm", "track_1"))
    return [
        StepReading(step, first if step % 2 else second, (float(step), 2.0), 0, float(step))
        for step in range(1, steps + 1)
    ]


def test_the_last_value_of_each_of_two_trainings_side_by_side_is_kept():
    thinner = Thinner(10)
    points = [point for item in gan(78) for point in thinner.points(item)] + thinner.rest()
    assert steps_of(points, LOSS)[-1] == 77
    assert steps_of(points, Signal("loss", "track_1"))[-1] == 78
    assert [point.value for point in points if point.signal == LOSS][-1] == 77.0
    assert steps_of(points, Signal("loss_max"))[-1] == 77
    assert len({(point.signal, point.step) for point in points}) == len(points)
    assert thinner.rest() == []


def test_the_last_value_of_what_ended_long_before_is_kept():
    thinner, places = Thinner(1000), [Signal("loss", f"part_{number}") for number in range(100)]
    points = thinner.points(reading(1)) + thinner.points(reading(2, math.nan))
    for step, signal in enumerate(places, 3):
        points += thinner.points(StepReading(step, (signal, Signal("step_time")), (1.0, 1.0), 0, 0.0))
    points += thinner.rest()
    assert steps_of(points, LOSS) == [1, 2]
    assert steps_of(points, Signal("step_time")) == [3, 102]


def test_the_last_value_is_kept_where_a_storm_of_events_has_used_up_all_marks():
    thinner = Thinner(100)
    points = [point for step in range(1, 90) for point in thinner.points(reading(step), marked=True)] + thinner.rest()
    assert steps_of(points, LOSS)[-1] == 89


@given(st.integers(0, 60), st.integers(1, 20), st.sampled_from([math.nan, math.inf, -math.inf, 1.0]))
def test_resuming_at_any_reading_of_two_trainings_gives_the_same_points(cut, every, last):
    readings = [*gan(60), reading(61, last, (Signal("loss", "track_2"),))]
    whole, first = Thinner(every), Thinner(every)
    expected = [point for item in readings for point in whole.points(item)] + whole.rest()
    points = [point for item in readings[:cut] for point in first.points(item)]
    second = Thinner.resumed(json.loads(json.dumps(first.saved())))
    points += [point for item in readings[cut:] for point in second.points(item)] + second.rest()
    assert list(map(repr, expected)) == list(map(repr, points))


@given(st.integers(1, 60), st.integers(1, 20), st.lists(st.floats(allow_nan=False), min_size=60, max_size=60))
def test_resuming_at_any_reading_chooses_the_same_points(cut, every, losses):
    readings = [reading(step, loss) for step, loss in enumerate(losses, 1)]
    whole, first = Thinner(every), Thinner(every)
    expected = [point for item in readings for point in whole.points(item, item.step % 7 == 0)]
    points = [point for item in readings[:cut] for point in first.points(item, item.step % 7 == 0)]
    second = Thinner.resumed(json.loads(json.dumps(first.saved())))
    points += [point for item in readings[cut:] for point in second.points(item, item.step % 7 == 0)]
    assert expected == points
