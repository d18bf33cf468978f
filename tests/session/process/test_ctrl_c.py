from __future__ import annotations

import gc
import random
import signal
import time
from pathlib import Path
from types import FrameType

import pytest
import torch
from session.interrupting import OURS, Attentive, Moments, Training, thread_state

from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import JournalFollower
from mlflow_stability.vocabulary.measured.signal import StepReading

SECONDS = 3.0


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    gc.collect()
    torch._dynamo.reset()  # where anything is compiled nothing is looked into
    torch._dynamo.utils.counters.clear()


@pytest.mark.slow
def test_ctrl_c_at_any_moment_in_our_code_leaves_torch_unchanged_and_switches_nothing_off(tmp_path: Path) -> None:
    training, dice, before = Training(tmp_path), random.Random(1), thread_state()
    with training.watched():
        for _ in range(11):
            training.step()
        whole = Moments()
        with whole.counted():
            training.step()
            training.step()  # of two steps one is looked into
        interrupted = 0
        for _ in range(40):
            moments = Moments(1 + dice.randrange(whole.seen))
            with moments.counted():
                try:
                    training.step()
                    training.step()
                except KeyboardInterrupt:
                    interrupted += 1
            state = thread_state()
            assert {**state, "modes": ()} == before, f"moment {moments.at} of {whole.seen}"
            training.optimizer.zero_grad()  # whatever comes next takes the modes off
            assert thread_state() == before, f"moment {moments.at} of {whole.seen}"
            training.step()
            training.step()
            assert not training.guard.off, f"moment {moments.at} of {whole.seen}"
    assert interrupted > 30
    assert thread_state() == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in training.model.modules())
    follower = JournalFollower(tmp_path / "here" / JOURNAL)
    steps = [item.record for item in follower.read() if isinstance(item.record, StepReading)]
    assert follower.broken_lines == 0
    assert len(steps) > 90
    numbers = [step.step for step in steps]
    assert numbers == sorted(set(numbers))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer, or as rubbish is gone
def test_timed_ctrl_c_leaves_torch_unchanged_and_switches_nothing_off(tmp_path: Path) -> None:
    training, dice, before = Training(tmp_path), random.Random(2), thread_state()

    def interrupt(_: int, frame: FrameType | None) -> None:
        # Torch's own code, heard between two of its lines, leaves gradients off without us, too.
        if frame is not None and frame.f_code.co_filename.startswith(OURS):
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_VIRTUAL, dice.uniform(0.0001, 0.001), 1.0)

    # Not the timer that limits how long a test may take. Python ignores what a finalizer raises: then it is sent again.
    handler = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        with training.watched():
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, dice.uniform(0.0005, 0.03), 1.0)
                    while True:
                        training.step()
                except KeyboardInterrupt:
                    pass
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                assert {**thread_state(), "modes": ()} == before
                training.optimizer.zero_grad()
                assert thread_state() == before
                assert not training.guard.off
    finally:
        signal.signal(signal.SIGVTALRM, handler)
    assert thread_state() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.(trace|save|load)")
@pytest.mark.parametrize("grad", [True, False])
def test_after_ctrl_c_in_a_measured_pass_the_model_can_be_traced(tmp_path: Path, grad: bool) -> None:
    training = Training(tmp_path)
    bare = len(list(torch.jit.trace(Attentive().eval(), torch.ones(6, 4)).inlined_graph.nodes()))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with training.watched():
        for _ in range(9):
            training.step()
        handle = training.model.out.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            training.step()
        handle.remove()
        with torch.set_grad_enabled(grad):
            traced = torch.jit.trace(training.model.eval(), torch.ones(6, 4))
        assert len(list(traced.inlined_graph.nodes())) == bare
        assert not training.model.into._forward_hooks
        training.model.train()
        training.step()
    assert not training.guard.off
