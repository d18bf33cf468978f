from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from probes.forward.test_forward_watch import Heard, Net, nothing_compiled_before, watched
from probes.looked_into import unguarded
from torch import Tensor
from torch.optim import SGD

from mlflow_stability.probes.forward.forward_passes import ForwardWatch

__all__ = ["nothing_compiled_before"]  # a fixture


class Interrupted(Net):
    """Ctrl-C comes in the middle of a pass, once."""

    now = False

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if self.now:
            self.now = False
            raise KeyboardInterrupt
        return result


def interrupted() -> tuple[Interrupted, ForwardWatch, Heard]:
    model = Interrupted()
    watch, heard = watched(model)
    model.now = True
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 4))
    assert heard.calls == [("Interrupted", 1, []), "failed"]
    return model, watch, heard


@pytest.mark.parametrize("compiled", [False, True])
def test_ctrl_c_ends_the_pass_and_the_next_call_is_judged_for_itself(compiled: bool) -> None:
    model = Interrupted()
    if compiled:
        model.compile(backend="eager")
    watch, heard = watched(model)
    model.now = True
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 4))
    model.eval()(torch.ones(2, 4))
    assert heard.calls == [("Interrupted", 1, []), "failed", "evaluated"]
    model.train()(torch.ones(2, 4))
    assert heard.calls[3:] == [("Interrupted", 1, []), "ended"]
    watch.remove()


def test_after_ctrl_c_another_model_is_observed_as_well() -> None:
    model, watch, heard = interrupted()
    other = Net()
    watch.before_step(SGD(other.parameters(), lr=0.1))
    model.now = True
    heard.calls.clear()
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 4))
    other(torch.ones(2, 4))
    assert heard.calls == [("Interrupted", 1, []), "failed", ("Net", 1, []), "ended"]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_after_ctrl_c_the_model_can_be_traced() -> None:
    model, _, heard = interrupted()
    torch.jit.trace(model.eval(), torch.ones(2, 4))
    assert "ended" not in heard.calls


def test_after_ctrl_c_a_call_in_another_thread_is_ignored() -> None:
    model, _, heard = interrupted()
    other = threading.Thread(target=lambda: model(torch.ones(2, 4)))
    other.start()
    other.join()
    assert heard.calls == [("Interrupted", 1, []), "failed"]
    model(torch.ones(2, 4))
    assert heard.calls[2:] == [("Interrupted", 1, []), "ended"]


def test_a_listener_that_ctrl_c_has_kept_from_hearing_the_end_hears_that_the_pass_has_failed() -> None:
    class Deaf(Heard):
        now = True

        def forward_ended(self) -> None:
            if self.now:
                self.now = False
                raise KeyboardInterrupt
            super().forward_ended()

    model, heard = Net(), Deaf()
    watch = ForwardWatch(unguarded, (heard,))
    watch.before_step(SGD(model.parameters(), lr=0.1))
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 4))
    model.eval()(torch.ones(2, 4))
    assert heard.calls == [("Net", 1, []), "failed", "evaluated"]


def test_a_model_that_calls_itself_within_its_pass_has_one_pass() -> None:
    class Again(Net):
        depth = 2

        def forward(self, x: Tensor) -> Tensor:
            if self.depth:
                self.depth -= 1
                with torch.no_grad():
                    self(x)
                with contextlib.suppress(RuntimeError):
                    self(torch.ones(2, 5))
            return super().forward(x)

    model = Again()
    _, heard = watched(model)
    model(torch.ones(2, 4))
    assert heard.calls == [("Again", 1, []), "ended"]
    model(torch.ones(2, 4))
    assert heard.calls[2:] == [("Again", 1, []), "ended"]
