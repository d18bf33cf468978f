import time
from concurrent.futures import ThreadPoolExecutor

from mlflow import MlflowClient

from mlflow_stability.courier.run_of_recording import (
    RecordingTag,
    claim_place,
    earlier_left,
    place_among,
    recordings_in,
)
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.run import Opening


def opening(name, **fields):
    return Opening(name, 1, 1.0, "here", 1.0, **fields)


def test_the_first_recording_of_a_run_counts_as_it_is():
    place = place_among([], 0, opening("a"), time.time())
    assert (place.prefix, place.offset) == ("stability", 0)


def test_a_recording_next_to_a_running_one_has_its_own_section():
    recording_tags = [RecordingTag("a", state="live", last_step=50, time=time.time())]
    assert place_among(recording_tags, 1, opening("b"), time.time()).prefix == "stability_2"
    assert place_among(recording_tags, 1, opening("b"), time.time() + 60).prefix == "stability"


def test_a_recording_after_ended_ones_continues_with_their_steps():
    recording_tags = [
        RecordingTag("a", 0, state="ended", last_step=50),
        RecordingTag("b", 1, state="ended", last_step=80),
    ]
    assert place_among(recording_tags, 2, opening("c"), time.time()).offset == 80
    assert place_among(recording_tags, 2, opening("c", first_step=81), time.time()).offset == 0


def test_a_recording_that_continues_one_of_the_same_process_stays_in_its_section():
    now = time.time()
    before = RecordingTag("a", 0, settled=True, state="live", last_step=50, time=now)
    beside = RecordingTag("x", 1, settled=True, state="live", last_step=70, time=now)
    continued = opening("b", first_step=51, earlier=["a"])
    place = place_among([before], 1, continued, now)
    assert (place.prefix, place.offset) == ("stability", 0)
    assert place_among([before, beside], 2, continued, now).prefix == "stability_3"


def test_a_recording_waits_for_those_of_its_process_until_they_have_arrived():
    now = time.time()
    continued = opening("b", first_step=51, earlier=["a"])

    def left(*tags):
        return earlier_left({tag.key: tag.text() for tag in tags}, continued, now)

    assert left() == 1
    assert left(RecordingTag("a", -1, time=now)) == 1
    assert left(RecordingTag("a", 0, state="live", time=now)) == 1
    assert left(RecordingTag("a", 0, state="live", time=now - 60)) == 0
    assert left(RecordingTag("a", 0, state="ended", time=now)) == 0


def test_an_overwritten_tag_is_ignored():
    third = RecordingTag("c", 2)
    tags = {RecordingTag("a").key: "mine!", RecordingTag("b").key: "[]", third.key: third.text(), "other": "x"}
    assert list(recordings_in(tags)) == [2]


def test_recordings_that_come_at_the_same_moment_get_different_places(sqlite_uri):
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0").info.run_id
    names = ["a", "b", "c", "d"]
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda name: claim_place(RunWriter(client, run_id), opening(name)).number, names))
    assert len(set(numbers)) == 4
    again = [claim_place(RunWriter(client, run_id), opening(name)).number for name in names]
    assert again == numbers
