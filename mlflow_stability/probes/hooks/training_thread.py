"""Knows the thread that trains: captures of two threads at once cannot be told apart at the hooks.

The first thread that computes gradients or takes a step is the one; when it has ended, the next. Threads that Python
did not start are autograd's own, and work for whoever called backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from mlflow_stability.probes.hooks.uncompiled import uncompiled

is_cuda_used: Callable[[], bool] = torch.cuda.is_initialized
"""Whether there can be a stream that is captured."""


class TrainingThread:
    """The thread whose captures are counted."""

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self.ident = 0
        """Which thread it is; 0: none is known yet."""
        self._thread: threading.Thread | None = None
        self._on_foreign = on_foreign
        self._said = False

    @uncompiled
    def trains_elsewhere(self) -> bool:
        """Whether what happens now is compiled or captured, to be run later without us, or in another's thread."""
        if torch.compiler.is_compiling():
            return True
        if is_cuda_used() and torch.cuda.is_current_stream_capturing():
            return True
        return threading.get_ident() != self.ident and self.is_foreign()

    def is_foreign(self) -> bool:
        """Whether the caller runs in another thread than the one that trains; said once."""
        if threading.get_ident() == self.ident and self._thread is not None:
            return False
        thread = threading.current_thread()
        if isinstance(thread, threading._DummyThread):
            return False
        if self._thread is None or not self._thread.is_alive():
            self._thread, self.ident = thread, threading.get_ident()
            return False
        if not self._said:
            self._said = True
            self._on_foreign()
        return True
