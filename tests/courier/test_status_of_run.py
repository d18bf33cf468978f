import pytest

from mlflow_stability.courier.processes import silent_end, status_to_set, waits_for_process
from mlflow_stability.vocabulary.run import Closing

ENDED = Closing("finished", run_was_active=True)
CRASHED = Closing("crashed", run_was_active=True)
KILLED = silent_end(False, 5, 1.0)


@pytest.mark.parametrize(
    ("closing", "own", "status", "expected"),
    [
        (Closing("finished"), True, "RUNNING", "FINISHED"),
        (Closing("crashed"), True, "RUNNING", "FAILED"),
        (Closing("exited"), True, "RUNNING", "FAILED"),
        (Closing("interrupted"), True, "RUNNING", "KILLED"),
        (KILLED, True, "RUNNING", "KILLED"),
        (silent_end(True, 5, 1.0), True, "RUNNING", "FAILED"),
        (silent_end(False, 5, 1.0, journal_deleted=True), True, "RUNNING", "KILLED"),
        (ENDED, False, "RUNNING", "FINISHED"),
        (ENDED, False, "FAILED", None),  # its owner knew more
        (CRASHED, False, "RUNNING", "FAILED"),
        (CRASHED, False, "FINISHED", "FAILED"),  # what MLflow's own exit says after an exception
        (CRASHED, False, "FAILED", None),
        (KILLED, False, "RUNNING", "KILLED"),
        (KILLED, False, "FINISHED", None),  # was ended before the kill
        (Closing("crashed", run_was_active=False), False, "FINISHED", None),
        (Closing("finished", run_was_active=False), False, "RUNNING", None),
        (Closing("finished", run_was_active=False), True, "RUNNING", "FINISHED"),
    ],
)
def test_the_status_tells_the_truth(closing, own, status, expected):
    assert status_to_set(closing, closing not in (KILLED,), own, status, others_live=False) == expected


def test_a_run_that_another_process_still_writes_to_keeps_its_status():
    assert status_to_set(CRASHED, True, False, "RUNNING", others_live=True) is None


def test_only_a_run_that_mlflow_itself_may_end_has_to_wait_for_the_end_of_the_process():
    assert waits_for_process(CRASHED, own_run=False)
    assert not waits_for_process(CRASHED, own_run=True)
    assert not waits_for_process(Closing("finished", run_was_active=False), own_run=False)
