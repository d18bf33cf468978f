import time
from concurrent.futures import ThreadPoolExecutor

from mlflow import MlflowClient

from mlflow_stability.tracking.write.recording_claim import (
    RecordingTag,
    claim_place,
    place_among,
    recordings_in,
    tag_name,
)
from mlflow_stability.tracking.write.run_writer import RunWriter
from mlflow_stability.vocabulary import Opening


def opening(name, **fields):
    return Opening(name, 1, 1.0, "here", 1.0, **fields)


def test_the_first_recording_of_a_run_counts_as_it_is():
    place = place_among([], 0, opening("a"), time.time())
    assert (place.section, place.offset) == ("stability", 0)


def test_a_recording_beside_a_living_one_has_its_own_section():
    known = [RecordingTag("a", state="live", last_step=50, time=time.time())]
    assert place_among(known, 1, opening("b"), time.time()).section == "stability_2"
    assert place_among(known, 1, opening("b"), time.time() + 60).section == "stability"


def test_a_recording_behind_ended_ones_goes_on_with_their_steps():
    known = [RecordingTag("a", 0, state="ended", last_step=50), RecordingTag("b", 1, state="ended", last_step=80)]
    assert place_among(known, 2, opening("c"), time.time()).offset == 80
    assert place_among(known, 2, opening("c", first_step=81), time.time()).offset == 0


def test_a_tag_that_somebody_has_written_over_is_passed_over():
    tags = {tag_name("a"): "mine!", tag_name("b"): "[]", tag_name("c"): RecordingTag("c", 2).text(), "other": "x"}
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
