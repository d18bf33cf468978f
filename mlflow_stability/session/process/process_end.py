"""The end of the process for all its sessions: how it ended, and one wait for pending delivery.

Outcomes: an uncaught exception in any thread, `TrainingDiverged` among them, Ctrl-C, ``sys.exit(3)`` or ``exit(3)``,
also after an exception that the script or a trainer caught and exits for, the normal end; a killed process is reported
by the courier. Children of `multiprocessing` run no exit functions; their own end calls the same code.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.session.process.courier_link import DeliveringCourier, wait_for_delivery
from mlflow_stability.vocabulary.run import Closing

# What torch says when the CPU's allocator fails; an accelerator's has a class of its own.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class EndingWatch:
    """Listens at ``sys.excepthook``, ``sys.exit`` and ``exit`` without changing what they do."""

    def __init__(self) -> None:
        self.closing = Closing("finished")
        """How it would end if it ended now."""
        self.uncaught: tuple[int, Closing] | None = None
        """The last thread beside the main one that an exception has ended, and how."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to listen; once more does nothing."""
        if self._undo:
            return
        excepthook, leave, thread_hook = sys.excepthook, sys.exit, threading.excepthook
        quitter: Any = type(getattr(builtins, "exit", None))  # Python may run without `site`, which has it
        leave_by_builtin = vars(quitter).get("__call__")

        def watched_excepthook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            self.closing = closing_of(error)
            excepthook(kind, error, traceback)

        def exits(name: str, code: Any = None, *_: Any) -> None:
            if code not in (None, 0):
                handled = sys.exc_info()[1]  # Lightning catches Ctrl-C, and scripts catch `TrainingDiverged`, to exit
                told = isinstance(handled, TrainingDiverged | KeyboardInterrupt)
                self.closing = closing_of(handled) if handled and told else Closing("exited", f"{name}({code!r})")

        def watched_exit(*status: Any) -> NoReturn:
            exits("sys.exit", *status)
            leave(*status)

        def watched_builtin(builtin: Any, *status: Any) -> None:
            exits("exit", *status)
            if leave_by_builtin is not None:
                leave_by_builtin(builtin, *status)

        def watched_thread_hook(said: threading.ExceptHookArgs) -> None:
            if said.exc_value is not None:
                self.uncaught = threading.get_ident(), closing_of(said.exc_value)
            thread_hook(said)

        def undo() -> None:
            if threading.excepthook is watched_thread_hook:
                threading.excepthook = thread_hook
            if sys.excepthook is watched_excepthook:
                sys.excepthook = excepthook
            if sys.exit is watched_exit:
                sys.exit = leave
            if leave_by_builtin is not None and vars(quitter).get("__call__") is watched_builtin:
                quitter.__call__ = leave_by_builtin

        if leave_by_builtin is not None:
            quitter.__call__ = watched_builtin
        sys.excepthook, sys.exit, threading.excepthook = watched_excepthook, watched_exit, watched_thread_hook
        self._undo.append(undo)

    def of_thread(self, error: BaseException | None) -> Closing:
        """How the thread that calls has ended; `error`: what its outermost function has caught."""
        if self.uncaught is not None and self.uncaught[0] == threading.get_ident():
            return self.uncaught[1]
        return Closing("finished") if error is None else closing_of(error)

    def still_running(self) -> None:
        """Training goes on, so a ``sys.exit`` that somebody caught was not the end."""
        if self.closing.outcome != "finished":
            self.closing = Closing("finished")

    def remove(self) -> None:
        """Leave ``sys`` as it was."""
        while self._undo:
            self._undo.pop()()


def closing_of(error: BaseException) -> Closing:
    """How an exception that nobody caught ends a training."""
    said = f"{type(error).__name__}: {error}"[:500]
    if isinstance(error, TrainingDiverged):
        return Closing("stopped", error.reason[:500])
    if isinstance(error, KeyboardInterrupt):
        return Closing("interrupted", "Ctrl-C")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Closing("out_of_memory", said)
    if isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY):
        return Closing("out_of_memory", said)
    return Closing("crashed", said)


End = Callable[[Closing | None], Callable[[], None]]
"""Ends a session, where an exception is known to end the process with that; gives what is left to do after the wait."""


class ProcessExit:
    """What has to be done when this process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._open: dict[int, End] = {}
        self._awaited: list[DeliveringCourier] = []
        self._count = 0

    def begin(self, end: End) -> int:
        """A session trains from now on; gives the number by which it is called off again."""
        if self._pid != os.getpid():  # a fork has what belongs to its parent
            self.__init__()  # type: ignore[misc]
        atexit.unregister(self._run)  # anew: before whatever was registered since, MLflow's end of the run among it
        atexit.register(self._run)
        if not self._count and multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, self._run, exitpriority=0)
        self._count += 1
        self._open[self._count] = end
        return self._count

    def over(self, number: int, left: Sequence[DeliveringCourier]) -> None:
        """A session has ended; the end of the process waits for what of it has not arrived by then."""
        self._open.pop(number, None)
        awaited, self._awaited = [*self._awaited, *left], []
        for each in awaited:
            if each.link.all_arrived():
                each.link.let_go()
                _tell([each])
            else:
                self._awaited.append(each)

    def _run(self) -> None:
        if self._pid != os.getpid():
            return
        error = sys.exc_info()[1]  # in a child of `multiprocessing`, what its function has raised
        closing = None if error is None or isinstance(error, SystemExit) else closing_of(error)
        afterwards = [end(closing) for end in list(self._open.values())]
        awaited, self._awaited = self._awaited, []
        late = wait_for_delivery(awaited)
        _tell([each for each in awaited if each not in late])
        for act in afterwards:
            act()


def _tell(arrived: Sequence[DeliveringCourier]) -> None:
    """Say how the trainings went of which everything has arrived."""
    for each in arrived:
        each.output.ended([run for run in each.link.runs().values() if run.run_id])


process_exit = ProcessExit()
