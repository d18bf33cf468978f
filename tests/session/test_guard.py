from __future__ import annotations

import os
import time

import pytest

from mlflow_stability.session.guard import PartGuard


class Failures(list[tuple[str, str]]):
    def __call__(self, part: str, error: Exception) -> None:
        self.append((part, str(error)))


def broken(*_: object) -> None:
    raise ValueError("ours")


def test_a_part_that_fails_is_reported_once_and_rests() -> None:
    failures, calls = Failures(), []
    guard = PartGuard(strict=False, on_failure=failures)

    def body(number: int) -> None:
        calls.append(number)
        broken()

    guarded = guard("norm", body)
    for number in range(5):
        assert guarded(number) is None
    assert calls == [0]
    assert failures == [("norm", "ours")]
    assert guard.off == {"norm": "ValueError: ours"}


def test_other_parts_go_on() -> None:
    guard = PartGuard(strict=False, on_failure=Failures())
    guard("norm", broken)()
    assert guard("loss", lambda: 7)() == 7


def test_strict_raises_what_failed() -> None:
    guard = PartGuard(strict=True, on_failure=Failures())
    with pytest.raises(ValueError, match="ours"):
        guard("norm", broken)()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_ctrl_c_and_the_like_always_pass(kind: type[BaseException]) -> None:
    def interrupted() -> None:
        raise kind

    failures = Failures()
    guard = PartGuard(strict=False, on_failure=failures)
    guarded = guard("norm", interrupted)
    with pytest.raises(kind):
        guarded()
    with pytest.raises(kind):
        guarded()  # and the part is not off
    assert failures == []


def test_an_error_while_telling_of_an_error_stays_with_us() -> None:
    guard = PartGuard(strict=False, on_failure=broken)
    assert guard("norm", broken)() is None
    assert guard.off


def test_in_a_forked_child_nothing_of_ours_runs() -> None:
    calls = []
    guarded = PartGuard(strict=True, on_failure=Failures())("norm", lambda: calls.append(1))
    child = os.fork()
    if child == 0:
        guarded()
        os._exit(len(calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_time_of_a_body_inside_another_is_counted_once() -> None:
    guard = PartGuard(strict=True, on_failure=Failures())
    inner = guard("inner", lambda: time.sleep(0.05))
    guard("outer", inner)()
    assert 0.05 <= guard.seconds < 0.09


def test_the_time_that_our_code_reads_itself_is_never_more_than_has_passed() -> None:
    guard = PartGuard(strict=True, on_failure=Failures())
    read = guard("inner", lambda: (time.perf_counter(), guard.seconds, time.perf_counter()))

    def long_before_it_reads() -> tuple[float, float, float]:
        time.sleep(0.05)
        return read()

    outer = guard("outer", long_before_it_reads)
    began = time.perf_counter()
    before, first_own, first = outer()
    _, own, last = guard("outer", read)()
    assert 0.05 <= first_own <= first - began
    assert 0 < own - first_own <= last - before
