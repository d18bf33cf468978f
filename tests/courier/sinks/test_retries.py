"""When a failed task is tried again, and when an outlet is given up."""

from __future__ import annotations

from mlflow_stability.alerts.alert import OutletSettings
from mlflow_stability.courier.processes import TrainingState
from mlflow_stability.courier.sinks.sink import Backoff, Outlet, OutletPlan
from mlflow_stability.errors import JournalError, RunNotFoundError, TrackingError
from mlflow_stability.journal.journal import Record
from mlflow_stability.vocabulary.run import Closing

ALIVE = TrainingState(alive=True, killed_for_memory=lambda: False)


def test_a_task_that_fails_is_retried_ever_less_often_and_never_given_up() -> None:
    backoff, now, waits = Backoff(), 100.0, list[float]()
    assert backoff.ready(now)
    assert (backoff.error, backoff.since, backoff.hopeless) == ("", None, False)
    for _ in range(9):
        backoff.failed(TrackingError("away"), now)
        began = now
        while not backoff.ready(now):
            now += 0.25
        waits.append(now - began)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0]
    assert (backoff.error, backoff.since, backoff.hopeless) == ("away", 100.0, False)


def test_a_success_forgets_the_failures_before_it() -> None:
    backoff = Backoff()
    for now in (100.0, 200.0, 300.0):
        backoff.failed(RunNotFoundError("gone"), now)
    backoff.succeeded()
    assert backoff.ready(0.0)
    assert (backoff.error, backoff.since, backoff.hopeless) == ("", None, False)
    backoff.failed(TrackingError("away"), 400.0)
    assert (backoff.since, backoff.ready(400.4), backoff.ready(400.5)) == (400.0, False, True)


def test_a_run_or_a_journal_that_is_gone_is_hopeless_and_an_error_without_words_has_a_name() -> None:
    for error, hopeless in ((RunNotFoundError("gone"), True), (JournalError("gone"), True), (TrackingError(), False)):
        backoff = Backoff()
        backoff.failed(error, 100.0)
        assert backoff.hopeless is hopeless
        assert backoff.error == (str(error) or "TrackingError")


class Failing(Outlet):
    """An outlet that fails when it takes a record, or when it sends."""

    def __init__(self, plan: OutletPlan, takes: bool) -> None:
        super().__init__(plan)
        self.takes, self.asked = takes, 0

    def _take(self, record: Record) -> None:
        if not self.takes:
            raise ValueError("no room")

    def _flush(self, state: TrainingState) -> bool:
        self.asked += 1
        raise OSError("no route")


def test_an_outlet_that_fails_is_switched_off_with_one_notice_and_delays_nothing() -> None:
    for takes, error in ((True, "OSError"), (False, "ValueError")):
        notices: list[str] = []
        outlet = Failing(OutletPlan(OutletSettings(), notices.append), takes)
        outlet.take(Closing("finished"))
        assert outlet.flush(ALIVE) is False
        assert outlet.flush(ALIVE) is False
        assert outlet.asked == int(takes)
        assert (outlet.done, outlet.full, outlet.awaited) == (True, True, False)
        (notice,) = notices
        assert notice.startswith(f"Failing failed ({error}) and is switched off")
