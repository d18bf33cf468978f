"""Makes cards in several processes.

In: sources. Out: for each its cards, as they are done. Promised: each worker has one source to work on and one to go on
with, so that memory does not grow with their number; a worker that dies costs the sources it held, which are then cards
that say so; all are gone when the last answer is taken, or when nobody waits any more.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import mlflow_stability
from mlflow_stability.vocabulary.card_text import card_of
from mlflow_stability.vocabulary.run_card import RunCard

AHEAD = 2
"""Sources that a worker holds."""
DIED = "The process that was reading it ended before it was done (out of memory?). Ask for it alone."
_CHUNK = 1 << 20


class _Worker:
    """One process, what it holds, and what has come of its answer so far."""

    def __init__(self, settings: str) -> None:
        package = str(Path(mlflow_stability.__file__).parent.parent)
        path = os.pathsep.join(each for each in (package, os.environ.get("PYTHONPATH", "")) if each)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow_stability.analysis.card_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that asks: it says what is done and ends this one
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self.out = self.process.stdin, self.process.stdout
        self.held: dict[int, str] = {}
        self._pending = b""
        self._say(settings)

    def give(self, number: int, source: str) -> None:
        self.held[number] = source
        self._say(json.dumps([number, source]))

    def answers(self) -> Iterator[tuple[int, list[RunCard]]] | None:
        """Those that are whole by now; None when it has ended."""
        arrived = os.read(self.out.fileno(), _CHUNK)
        if not arrived:
            return None
        *lines, self._pending = (self._pending + arrived).split(b"\n")
        return self._read(lines)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.out.close()
        try:
            self._in.close()
        except BrokenPipeError:
            self.held.clear()

    def _read(self, lines: Sequence[bytes]) -> Iterator[tuple[int, list[RunCard]]]:
        for line in lines:
            number, texts = json.loads(line)
            del self.held[number]
            yield number, [card_of(text) for text in texts]

    def _say(self, line: str) -> None:
        try:
            self._in.write(line.encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            return  # it has ended, which its other pipe tells


def cards_from_processes(
    sources: Sequence[str], count: int, tracking_uri: str | None, detectors: str | None
) -> Generator[tuple[int, list[RunCard]], None, None]:
    """For each source its place and its cards, in the order in which they are done."""
    settings = json.dumps({"tracking_uri": tracking_uri, "detectors": detectors})
    waiting = iter(enumerate(sources))
    workers: list[_Worker] = []
    try:
        with selectors.DefaultSelector() as listening:
            for _ in range(min(count, len(sources))):
                worker = _Worker(settings)
                workers.append(worker)
                listening.register(worker.out, selectors.EVENT_READ, worker)
                _fill(worker, waiting)
            while listening.get_map():
                for key, _ in listening.select():
                    worker = key.data
                    answers = worker.answers()
                    if answers is None:
                        listening.unregister(worker.out)
                        yield from ((n, [RunCard(each, each, error=DIED)]) for n, each in list(worker.held.items()))
                        continue
                    yield from answers
                    _fill(worker, waiting)
                    if not worker.held:
                        listening.unregister(worker.out)
            yield from ((number, [RunCard(source, source, error=DIED)]) for number, source in waiting)
    finally:
        for worker in workers:
            worker.close()


def _fill(worker: _Worker, waiting: Iterator[tuple[int, str]]) -> None:
    while len(worker.held) < AHEAD and (following := next(waiting, None)) is not None:
        worker.give(*following)
