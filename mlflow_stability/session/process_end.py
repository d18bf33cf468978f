"""The end of the process, of a training thread, and of a notebook's cell; one wait for pending delivery.

Outcomes: an uncaught exception in any thread, `TrainingDiverged` among them, Ctrl-C, ``sys.exit(3)`` or ``exit(3)``,
also after a caught exception, or the normal end; a killed process is reported by the courier. Children of
`multiprocessing` run no exit functions; their own end calls the same code.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import multiprocessing
import multiprocessing.util
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.session.courier_link import DeliveringCourier, wait_for_delivery
from mlflow_stability.session.training_facts import message_without_secrets
from mlflow_stability.vocabulary.run import Closing

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Messages of torch's CPU allocator; out of memory on an accelerator has its own exception class.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class EndingWatch:
    """Observes ``sys.excepthook``, ``sys.exit`` and ``exit`` without changing what they do."""

    def __init__(self) -> None:
        self.closing = Closing("finished")  # how the process would end now
        self.uncaught: tuple[int, Closing] | None = None  # the last other thread that an exception has ended, and how
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
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
                explains = isinstance(handled, TrainingDiverged | KeyboardInterrupt)
                self.closing = (
                    closing_of(handled)
                    if handled and explains
                    else Closing("exited", message_without_secrets(f"{name}({code!r})"))
                )

        def watched_exit(*status: Any) -> NoReturn:
            exits("sys.exit", *status)
            leave(*status)

        def watched_builtin(builtin: Any, *status: Any) -> None:
            exits("exit", *status)
            if leave_by_builtin is not None:
                leave_by_builtin(builtin, *status)

        def watched_thread_hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None:
                self.uncaught = threading.get_ident(), closing_of(args.exc_value)
            thread_hook(args)

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
        """Return how the calling thread has ended; `error`: what its outermost function has caught."""
        if self.uncaught is not None and self.uncaught[0] == threading.get_ident():
            return self.uncaught[1]
        return Closing("finished") if error is None else closing_of(error)

    def still_running(self) -> None:
        """Training continues, so a ``sys.exit`` was caught."""
        self.closing = Closing("finished")

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()


def closing_of(error: BaseException) -> Closing:
    """Return how an uncaught exception ends a training; its message is on one line, without secrets and colours."""
    message = " ".join(message_without_secrets(_COLOUR.sub("", str(error))).split())
    text = f"{type(error).__name__}: {message}"[:500]
    if isinstance(error, TrainingDiverged):
        return Closing("stopped", error.reason[:500])
    if isinstance(error, KeyboardInterrupt):
        return Closing("interrupted", "Ctrl-C")
    no_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if isinstance(error, RuntimeError):
        no_memory = no_memory or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
    return Closing("out_of_memory" if no_memory else "crashed", text)


End = Callable[[Closing | None], Callable[[], None]]
"""Ends a session, with the closing if an exception ends the process; returns what is left to do after the wait."""


class ProcessExit:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._open: dict[int, End] = {}
        self._awaited: list[DeliveringCourier] = []
        self._count = 0

    def begin(self, end: End) -> int:
        """Register a session; return its number for `over`."""
        if self._pid != os.getpid():  # a fork inherits its parent's sessions
            self.__init__()  # type: ignore[misc]
        atexit.unregister(self._run)  # again, to run before functions registered since, such as MLflow's end of the run
        atexit.register(self._run)
        if not self._count and multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, self._run, exitpriority=0)
        self._count += 1
        self._open[self._count] = end
        return self._count

    def over(self, number: int, left: Sequence[DeliveringCourier]) -> None:
        """End a session; the end of the process waits for data that has not arrived."""
        self._open.pop(number, None)
        awaited, self._awaited = [*self._awaited, *left], []
        for courier in awaited:
            if courier.link.all_arrived():
                courier.link.let_go()
                _print_outcomes([courier])
            else:
                self._awaited.append(courier)

    def _run(self) -> None:
        if self._pid != os.getpid():
            return
        error = sys.exc_info()[1]  # in a child of `multiprocessing`, the error of its function
        closing = None if error is None or isinstance(error, SystemExit) else closing_of(error)
        afterwards = [end(closing) for end in list(self._open.values())]
        awaited, self._awaited = self._awaited, []
        late = wait_for_delivery(awaited)
        _print_outcomes([courier for courier in awaited if courier not in late])
        for act in afterwards:
            act()


def _print_outcomes(arrived: Sequence[DeliveringCourier]) -> None:
    for courier in arrived:
        courier.output.ended([run for run in courier.link.runs().values() if run.run_id])


process_exit = ProcessExit()


OnEnd = Callable[[BaseException | None], None]


class ThreadEnd:
    """Calls back in each thread that called `watch`, when that thread ends.

    Ray Train and others train in a thread of a worker process, and kill the worker as soon as `is_alive()` is False: no
    exit function runs there.
    """

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self.ident = 0  # the watched thread; 0: none
        self._local = threading.local()

    def watch(self) -> None:
        """Watch the calling thread; 200 ns where it is watched already."""
        ident = threading.get_ident()
        if ident == self.ident:
            return
        self.ident = ident
        if ident != threading.main_thread().ident:
            self._local.last = _Last(ident, _outermost_frame(sys._getframe()), self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self.ident = 0
        self._on_end(error)


class _Last:
    """Destroyed with the thread's local variables."""

    def __init__(self, ident: int, frame: FrameType, on_end: OnEnd) -> None:
        self._ident = ident
        self._frame = frame
        self._on_end = on_end

    def __del__(self) -> None:
        if threading.get_ident() == self._ident:  # else the watch was taken off, and the thread lives on
            self._on_end(_exception_from_below(self._frame))


def _outermost_frame(frame: FrameType) -> FrameType:
    """Return the thread's first function outside of `threading`."""
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") != threading.__name__:
        frame = frame.f_back
    return frame


def _exception_from_below(frame: FrameType) -> BaseException | None:
    """Return the exception that reached this frame from below, and that something still holds."""
    tracebacks = [
        referrer
        for referrer in gc.get_referrers(frame)
        if isinstance(referrer, TracebackType) and referrer.tb_frame is frame and referrer.tb_next is not None
    ]
    for referrer in gc.get_referrers(*tracebacks) if tracebacks else ():
        if isinstance(referrer, BaseException) and any(referrer.__traceback__ is traceback for traceback in tracebacks):
            # Frameworks wrap exceptions in others without words.
            error = referrer
            while not str(error) and error.__cause__ is not None:
                error = error.__cause__
            return error
    return None


class CellEnd:
    """Calls back at the end of each cell of a notebook; does nothing outside of IPython."""

    def __init__(self, on_end: Callable[[Closing], None]) -> None:
        self._on_end = on_end
        self._events: Any = None

    def install(self) -> None:
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = None if get_shell is None else get_shell()
        if shell is not None and self._events is None:
            self._events = shell.events
            self._events.register("post_run_cell", self._ended)

    def remove(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.unregister("post_run_cell", self._ended)

    def _ended(self, result: Any) -> None:
        error = result.error_in_exec or result.error_before_exec
        self._on_end(Closing("finished") if error is None else closing_of(error))
