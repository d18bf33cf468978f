"""Ctrl-C at a moment that the test chooses, and a training that hears it; nothing of it depends on a clock."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import mlflow_stability
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.step.step_meter import StepMeter
from mlflow_stability.session.probe_plan import probe_scheduler_of
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.vocabulary.run import Opening
from mlflow_stability.vocabulary.settings import Settings

OURS = str(Path(mlflow_stability.__file__).parent)


class Moments:
    """Counts the moments at which Python may hear Ctrl-C while code of ours runs, and raises it at one of them.

    Those are the beginning of a function, and the return of one that is written in C, when it has had its effect.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        """Which one; zero: none."""
        self.seen = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # it may be one that is thrown away: what is raised in there is lost
        if any(getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks):
            return  # nor in there; when objects are collected is another matter in every run
        above = frame.f_back
        files = (frame.f_code.co_filename, "" if above is None else above.f_code.co_filename)
        if event in ("call", "c_return") and any(file.startswith(OURS) for file in files):
            self.seen += 1
            if self.seen == self.at:
                raise KeyboardInterrupt


def thread_state() -> dict[str, Any]:
    """What torch keeps for this thread."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    return {
        "gradients": torch.is_grad_enabled(),
        "functions": torch._C._is_torch_function_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "operations": excluded(torch._C.DispatchKey.Python) or excluded(torch._C.DispatchKey.PythonTLSSnapshot),
        "modes": (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()),
    }


class Attentive(nn.Module):
    """Has everything that is looked at: attention, layers, and codes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.into(x).relu()
        hidden = nn.functional.scaled_dot_product_attention(hidden[None], hidden[None], hidden[None])[0]
        output: Tensor = self.out(hidden)
        return output


class Training:
    """A training that is looked into at each second step, recorded and judged."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self.guard = PartGuard(False, lambda part, error: self.told.append(f"{part}: {error!r}"))
        settings = Settings(attention_every_n_steps=2, layers_every_n_steps=2, sdr_check_interval=2)
        opening = Opening("here", 1, 0.0, "here", 0.0)
        self.recording = Recording(folder / "here", opening, default_detectors(), self.guard, lambda event: None)
        self.meter = StepMeter(
            self.guard,
            lambda _: self.recording,
            lambda recording, reading: recording.record(reading),
            lambda recording: probe_scheduler_of(settings, self.guard, recording),
        )
        self.watch = TorchWatch(self.guard, self.meter)
        self.model = Attentive()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.inputs = torch.randn(6, 4)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hooks are in torch."""
        self.watch.install()
        try:
            yield
        finally:
            self.watch.remove()
            self.meter.close()
            self.recording.close(mlflow_stability.vocabulary.run.Closing("finished", run_was_active=False))

    def step(self) -> None:
        """One step of the script."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
