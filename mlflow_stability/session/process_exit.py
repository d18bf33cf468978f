"""The end of the process, for every session in it: one exit function, and one wait for all that is still on its way.

Children of `multiprocessing` run no exit functions; there its own way of ending them calls the same.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_stability.session.courier_link import CourierLink
from mlflow_stability.session.ending import closing_of
from mlflow_stability.session.exit_wait import wait_for_delivery
from mlflow_stability.vocabulary.milestone import Closing

End = Callable[[Closing | None], Callable[[], None]]
"""Ends a session, where an exception is known to end the process with that; gives what is left to do after the wait."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A courier that still delivers."""

    link: CourierLink
    seconds: float
    """For how long the end of the process waits for it."""


class ProcessExit:
    """What has to be done when this process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._open: dict[int, End] = {}
        self._awaited: list[Awaited] = []
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

    def over(self, number: int, left: Sequence[Awaited]) -> None:
        """A session has ended; the end of the process waits for what of it has not arrived by then."""
        self._open.pop(number, None)
        awaited, self._awaited = [*self._awaited, *left], []
        for each in awaited:
            if each.link.all_arrived():
                each.link.let_go()
            else:
                self._awaited.append(each)

    def _run(self) -> None:
        if self._pid != os.getpid():
            return
        error = sys.exc_info()[1]  # in a child of `multiprocessing`, what its function has raised
        closing = None if error is None or isinstance(error, SystemExit) else closing_of(error)
        afterwards = [end(closing) for end in list(self._open.values())]
        awaited, self._awaited = self._awaited, []
        wait_for_delivery([(each.link, each.seconds) for each in awaited])
        for each in afterwards:
            each()


process_exit = ProcessExit()
