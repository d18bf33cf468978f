import time
from contextlib import suppress

import psutil
import pytest
from courier.staging import Fed, Training
from findings import at_step
from waiting import wait_until

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks import metric_sink
from mlflow_stability.courier.sinks.file_sinks import PartSink
from mlflow_stability.courier.sinks.metric_sink import DeliveryPace, MetricSink
from mlflow_stability.errors import TrackingError
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity

SIGNALS = tuple(Signal(f"signal_{number}") for number in range(50))


class Shelf:
    """The border of tracking: keeps what it is sent, at the speed it is given."""

    def __init__(self, seconds_per_point=0.0):
        self.points, self.files, self.broken, self.seconds_per_point = [], [], False, seconds_per_point

    def log(self, points, section):
        if self.broken:
            raise TrackingError("away")
        time.sleep(len(points) * self.seconds_per_point)
        self.points += points

    def upload(self, file, folder):
        if self.broken:
            raise TrackingError("away")
        self.files.append(file.name)


@pytest.fixture
def training(tmp_path):
    training = Training(tmp_path / ".mlflow-stability", "sqlite:///never-opened.db")
    yield training
    training.end()


def journal(training, steps, rate=50.0):
    began = time.time()
    for step in range(1, steps + 1):
        training.journal.append(StepReading(step, SIGNALS, (1.0 + step % 7,) * 50, 0, began + step / rate))


@pytest.mark.slow
def test_a_store_that_is_too_slow_gets_the_newest_points_first_and_all_others_after_the_training(training):
    shelf, delivered = Shelf(seconds_per_point=0.0002), Delivered(training.journal.folder)
    pace = DeliveryPace("sqlite:///x")
    sink = MetricSink(delivered, shelf, pace, every=1)
    fed = Fed(training.journal, sink)
    journal(training, 400, rate=1e6)  # 20,000 points; 200 a second can be sent beside a living training
    wait_until(lambda: (fed.advance(over=False), len(shelf.points) >= 1_200)[1])
    assert max(point.step for point in shelf.points) > 390
    assert delivered.metrics_until < training.journal.bytes_written, "a killed courier would go on behind a gap"
    fed.drive()  # as far as the end of the training waits
    assert len(shelf.points) < 2_000
    assert not sink.filled
    sink.awaited, pace.share = False, 0.5
    while not sink.filled:
        sink.flush(over=True)
        time.sleep(min(0.01, sink.seconds_to_wait()))
    assert len({(point.signal, point.step) for point in shelf.points}) == len(shelf.points) == 20_000
    assert delivered.metrics_until == training.journal.bytes_written


@pytest.mark.slow
def test_a_store_that_was_away_but_is_fast_enough_gets_all_points_while_training_lives(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=10)
    fed = Fed(training.journal, sink)
    journal(training, 3000, rate=1e6)
    wait_until(lambda: (fed.advance(over=False), len({point.step for point in shelf.points}) >= 301)[1])
    assert sink.reached == sink.until


def test_points_that_exceed_the_memory_limit_are_read_again_at_the_end(training, monkeypatch):
    monkeypatch.setattr(metric_sink, "MOST_WAITING", 3_000)
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    shelf.broken = True
    sinks = [MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)]
    fed = Fed(training.journal, *sinks)
    journal(training, 200)
    for _ in range(10):
        with suppress(TrackingError):
            fed.advance(over=False)
    assert not sinks[0].must_be_repeated, "before the end, newer points may still arrive"
    shelf.broken = False
    fed.drive()
    assert sinks[0].must_be_repeated
    assert not sinks[0].filled
    assert delivered.metrics_until == 0
    again = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)
    Fed(training.journal, again).drive()
    assert again.filled
    assert len({(point.signal, point.step) for point in shelf.points}) == 200 * 50


@pytest.mark.slow
def test_memory_stays_bounded_in_a_store_outage_of_any_length(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    shelf.broken = True
    metrics = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), 1)
    parts = PartSink(delivered, shelf, time.time())
    fed = Fed(training.journal, metrics, parts)
    journal(training, 24_000)  # more than a million values
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(60):
        fed.reader.advance()
        for sink in (metrics, parts):
            with suppress(TrackingError):
                sink.flush(over=False)
    assert process.memory_info().rss - before < 150e6
    shelf.broken = False
    fed.drive()
    assert metrics.must_be_repeated
    assert max(point.step for point in shelf.points) == 24_000
    assert delivered.parts_until == training.journal.bytes_written
    assert len(shelf.files) == len(set(shelf.files)) == 2


def test_steps_are_sent_as_the_run_counts_them(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder, offset=1000)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=10)
    fed = Fed(training.journal, sink)
    journal(training, 20)
    assert not sink.filled
    fed.drive()
    assert {point.step for point in shelf.points} == {1001, 1010, 1020}
    assert (sink.filled, sink.must_be_repeated) == (True, False)


def test_the_last_step_of_each_of_two_trainings_side_by_side_arrives(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    layouts = (Signal("loss"),), (Signal("loss", "track_1"),)
    for step in range(1, 38):
        training.journal.append(StepReading(step, layouts[step % 2], (float(step),), 0, time.time()))
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=10)
    fed = Fed(training.journal, sink)
    fed.advance(over=False)
    again = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=10)
    fed.drive()
    Fed(training.journal, again).drive()
    last = {signal: max(point.step for point in shelf.points if point.signal == signal) for (signal,) in layouts}
    assert last == {Signal("loss"): 36, Signal("loss", "track_1"): 37}


@pytest.mark.parametrize("later", [0, 30])
def test_the_step_of_an_event_is_kept_however_soon_after_it_the_event_was_found(training, later):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1000)
    fed = Fed(training.journal, sink)
    for step in range(1, 101):
        training.journal.append(StepReading(step, SIGNALS[:1], (float(step),), 0, time.time()))
        if step == 50 + later:
            training.journal.append(at_step(50, "loss_spike", Severity.WARNING, "high"))
    fed.drive()
    assert [point.step for point in shelf.points if point.signal == SIGNALS[0]] == [1, 50, 100]


def test_readings_that_are_held_for_their_events_are_sent_after_a_restart_too(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    journal(training, 40, rate=1e6)
    Fed(training.journal, MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)).advance(over=False)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)
    fed = Fed(training.journal, sink)
    fed.drive()
    assert sorted({point.step for point in shelf.points}) == list(range(1, 41))


def test_hurried_metrics_are_sent_at_once_and_the_last_step_is_still_sent_at_the_end(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=10)
    fed = Fed(training.journal, sink)
    journal(training, 25)
    sink.hurried = True
    while sink.hurried:
        fed.advance(over=False)
    assert max(point.step for point in shelf.points) == 20
    assert delivered.metrics_until == sink.reached
    fed.drive()
    assert max(point.step for point in shelf.points) == 25


def test_hurried_metrics_are_sent_without_a_pause_between_requests(training):
    shelf, delivered = Shelf(seconds_per_point=0.00002), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)
    fed = Fed(training.journal, sink)
    journal(training, 40, rate=1e6)  # 2,000 points, of which 200 are sent at once
    sink.hurried, turns = True, 0
    while sink.hurried:
        fed.advance(over=False)
        turns += 1
    assert turns < 20


def test_records_without_points_count_as_delivered_too(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)
    fed = Fed(training.journal, sink)
    journal(training, 3)
    sink.hurried = True
    while sink.hurried:
        fed.advance(over=False)
    assert delivered.metrics_until == training.journal.bytes_written
    training.journal.append(at_step(3, "loss_spike", Severity.WARNING, "high"))
    fed.drive()
    assert len(shelf.points) == 3 * 50
    assert delivered.metrics_until == training.journal.bytes_written


def test_few_points_wait_a_moment_for_company_unless_they_are_hurried(training):
    shelf, delivered = Shelf(), Delivered(training.journal.folder)
    sink = MetricSink(delivered, shelf, DeliveryPace("sqlite:///x"), every=1)
    fed = Fed(training.journal, sink)
    for step in (1, 2, 3):
        training.journal.append(StepReading(step, SIGNALS, (float(step),) * 50, 0, time.time() - 60))
    fed.advance(over=False)
    assert shelf.points == []
    sink.hurried = True
    fed.advance(over=False)
    assert shelf.points
