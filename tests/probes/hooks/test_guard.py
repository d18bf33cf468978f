from __future__ import annotations

import gc
import io
import os
import signal
import time
import weakref
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from session.interrupting import Moments, thread_state

from mlflow_stability.probes.hooks.guarded_hooks import FORGIVEN, PartGuard
from mlflow_stability.probes.hooks.thread_state import untracked


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


def test_other_parts_continue() -> None:
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


def test_an_error_while_reporting_an_error_does_not_reach_the_script() -> None:
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
    outer = guard("outer", inner)
    began = time.perf_counter()
    outer()
    assert 0.05 <= guard.seconds <= time.perf_counter() - began


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


def in_the_middle_of_a_file() -> None:
    """A clean-up that fails over Ctrl-C, as that of a ZIP file does, and puts its own error in front."""
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        handle = archive.open("map.npy", "w")
        signal.raise_signal(signal.SIGINT)
        handle.close()


def test_ctrl_c_reaches_the_script_even_if_our_clean_up_fails() -> None:
    failures = Failures()
    guard = PartGuard(strict=False, on_failure=failures)
    with pytest.raises(ValueError, match="open writing handle"):
        in_the_middle_of_a_file()
    with pytest.raises(KeyboardInterrupt):
        guard("attention", in_the_middle_of_a_file)()
    assert not guard.off
    assert not failures


def test_an_exception_of_the_scripts_signal_handler_is_not_hidden_by_an_error_of_ours() -> None:
    def handler(*_: Any) -> None:
        raise TimeoutError("the script's time is up")

    def body() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            broken()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        guard = PartGuard(strict=False, on_failure=Failures())
        with pytest.raises(TimeoutError, match="the script's"):
            guard("norm", body)()
        assert not guard.off
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_ours_while_the_script_deals_with_ctrl_c_is_our_own() -> None:
    guard = PartGuard(strict=False, on_failure=Failures())
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert guard("norm", broken)() is None  # saves a checkpoint, say
    assert guard.off == {"norm": "ValueError: ours"}


class Half:
    """Has two lists that must be of one length."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.right: list[int] = []
        self.interrupted = False

    def take(self) -> int:
        self.left.append(1)
        if self.interrupted:
            raise KeyboardInterrupt
        self.right.append(1)
        return sum(first for first, _ in zip(self.left, self.right, strict=True))


class Forgetful(Half):
    def forget(self) -> None:
        self.left, self.right = [], []


def test_a_part_that_ctrl_c_has_torn_forgets_what_was_half_done() -> None:
    guard, half = PartGuard(strict=True, on_failure=Failures()), Forgetful()
    take = guard("norm", half.take)
    assert take() == 1
    half.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        take()
    half.interrupted = False
    assert [take(), take()] == [1, 2]


def test_a_part_that_ctrl_c_has_torn_and_cannot_forget_is_forgiven_a_few_times() -> None:
    failures, half = Failures(), Half()
    guard = PartGuard(strict=False, on_failure=failures)
    take = guard("norm", half.take)
    half.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        take()
    half.interrupted = False
    assert [take() for _ in range(FORGIVEN)] == [None] * FORGIVEN
    assert not guard.off
    assert not failures
    take()
    assert "norm" in guard.off


def computes_aside() -> float:
    with untracked(), torch.no_grad():
        return float(torch.ones(2).sum())


def test_ctrl_c_at_any_moment_leaves_torch_unchanged() -> None:
    guard = PartGuard(strict=False, on_failure=Failures())
    computes = guard("norm", guard("inner", computes_aside))
    before, at = thread_state(), 0
    with torch.autocast("cpu"), torch.device("cpu"):
        within = thread_state()
        while True:
            at += 1
            moments = Moments(at)
            try:
                with moments.counted():
                    computes()
                break
            except KeyboardInterrupt:
                assert thread_state() == within, f"moment {at}"
        assert computes() == 2.0
    assert at > 20
    assert thread_state() == before
    assert not guard.off


def test_an_error_of_ours_leaves_torch_unchanged_as_well() -> None:
    def body() -> None:
        torch.set_grad_enabled(False)
        untracked().__enter__()
        broken()

    guard = PartGuard(strict=False, on_failure=Failures())
    before = thread_state()
    assert guard("norm", body)() is None
    assert thread_state() == before
    assert guard.off


def test_what_passes_through_keeps_nothing_alive() -> None:
    class Thing:
        pass

    def body(_: Thing) -> None:
        raise KeyboardInterrupt

    guarded = PartGuard(strict=False, on_failure=Failures())("norm", body)
    thing = Thing()
    reference = weakref.ref(thing)
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            guarded(thing)
        del caught, thing
        assert reference() is None
    finally:
        gc.enable()


class Hook:
    """The body of a hook, with a part in the middle that fails alone."""

    def __init__(self, body: Callable[[], Any], strict: bool = False, forget: Callable[[], None] | None = None) -> None:
        self.failures = Failures()
        self.guard = PartGuard(strict, self.failures)
        self.run = self.guard("step hooks", self.measure)
        self._body, self._forget = body, forget

    def measure(self) -> str:
        if "norm" not in self.guard.off:
            try:
                self._body()
            except BaseException as error:
                self.guard.contain("norm", error, self._forget)
        return "went on"


def test_a_hook_continues_if_a_part_inside_it_fails() -> None:
    hook = Hook(broken)
    assert [hook.run(), hook.run()] == ["went on", "went on"]
    assert hook.failures == [("norm", "ours")]
    assert hook.guard.off == {"norm": "ValueError: ours"}


def test_strict_raises_what_failed_inside_a_hook() -> None:
    with pytest.raises(ValueError, match="ours"):
        Hook(broken, strict=True).run()


@pytest.mark.parametrize("body", [lambda: signal.raise_signal(signal.SIGINT), in_the_middle_of_a_file])
def test_ctrl_c_inside_a_hook_passes_and_its_part_forgets(body: Callable[[], None]) -> None:
    forgotten: list[str] = []
    hook = Hook(body, forget=lambda: forgotten.append("norm"))
    with pytest.raises(KeyboardInterrupt):
        hook.run()
    assert forgotten == ["norm"]
    assert not hook.guard.off
    assert not hook.failures


def test_an_error_inside_a_hook_while_the_script_deals_with_ctrl_c_is_our_own() -> None:
    hook = Hook(broken)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert hook.run() == "went on"
    assert hook.guard.off == {"norm": "ValueError: ours"}


def test_an_error_that_was_contained_keeps_nothing_alive() -> None:
    class Thing:
        pass

    def body() -> None:
        thing = Thing()
        references.append(weakref.ref(thing))
        broken()

    references: list[weakref.ref[Thing]] = []
    hook = Hook(body)
    gc.disable()
    try:
        assert hook.run() == "went on"
        assert references[0]() is None
    finally:
        gc.enable()
