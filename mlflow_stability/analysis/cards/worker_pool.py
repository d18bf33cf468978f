"""Makes cards in several processes.

In: sources. Out: for each its cards, as they are done. Guarantees: each worker has one source to work on and one to go
on with, so that memory does not grow with their number; a worker that dies costs the source that it was reading, which
is then a card that says so, and another takes its place; where none can be started that judges by our rules this
process reads by itself; all are gone when the last answer is taken, or when nobody waits any more.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow_stability
from mlflow_stability.analysis.cards.card_cache import rules_here
from mlflow_stability.analysis.cards.one_card import cards_at
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_from_json

AHEAD = 2
"""Sources that a worker holds."""
DIED = "The process that read this run ended early (out of memory?). Try this run alone."
_CHUNK = 1 << 20
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from mlflow_stability.analysis.cards.card_worker import main
main()
"""
"""With the path of this process: `-m` would look first where it runs, and take a `queue.py` there for Python's own."""


class _Worker:
    """One process, what it holds, and what has come of its answer so far."""

    def __init__(self, settings: str, room: str) -> None:
        package = str(Path(mlflow_stability.__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *(each for each in sys.path if isinstance(each, str)), package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that asks: it says what is done and ends this one
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": room},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self.out = self.process.stdin, self.process.stdout
        self.held: dict[int, str] = {}
        """What it was given and has not answered; it reads the first of them."""
        self.ready = False
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
            return  # what it had not read is gone with it

    def _read(self, lines: Sequence[bytes]) -> Iterator[tuple[int, list[RunCard]]]:
        for line in lines:
            if self.ready:
                number, texts = json.loads(line)
                del self.held[number]
                yield number, [card_from_json(text) for text in texts]
            elif line == json.dumps(rules_here()).encode():
                self.ready = True
            else:  # we were installed anew while this process runs: its cards would be others than ours
                self.process.kill()
                return

    def _say(self, line: str) -> None:
        try:
            self._in.write(line.encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            return  # it has ended, which its other pipe tells


class _Pool:
    """The processes that are at work, and what waits for them."""

    def __init__(self, sources: Sequence[str], settings: str) -> None:
        self.waiting = deque(enumerate(sources))
        self._settings = settings
        self._room: TemporaryDirectory[str] | None = None
        """Where they put what they fetch: they may be ended before they can remove it."""
        self._workers: list[_Worker] = []
        self._listening = selectors.DefaultSelector()

    def start(self) -> None:
        """One more process; none where the system gives none."""
        try:
            self._room = self._room or TemporaryDirectory(prefix="mlflow-stability-", ignore_cleanup_errors=True)
            worker = _Worker(self._settings, self._room.name)
        except (OSError, TypeError):  # no memory, no process, or no interpreter that could be started
            return
        self._workers.append(worker)
        self._listening.register(worker.out, selectors.EVENT_READ, worker)
        self._fill(worker)

    def answers(self) -> Iterator[tuple[int, list[RunCard]]]:
        """Until no process is left that has something to do."""
        while self._listening.get_map():
            for key, _ in self._listening.select():
                answers = key.data.answers()
                if answers is None:
                    yield from self._bury(key.data)
                    continue
                yield from answers
                self._fill(key.data)
                if not key.data.held:
                    self._listening.unregister(key.fileobj)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._listening.close()
        if self._room is not None:
            self._room.cleanup()

    def _fill(self, worker: _Worker) -> None:
        while self.waiting and len(worker.held) < AHEAD:
            worker.give(*self.waiting.popleft())

    def _bury(self, worker: _Worker) -> Iterator[tuple[int, list[RunCard]]]:
        """What was read when it died cannot be told; the rest goes to another, unless it died before it could begin."""
        self._listening.unregister(worker.out)
        held = list(worker.held.items())
        lost = held[:1] if worker.ready else []
        self.waiting.extendleft(reversed(held[len(lost) :]))
        if worker.ready and self.waiting:
            self.start()
        yield from ((number, [RunCard(source, source, error=DIED)]) for number, source in lost)


def cards_from_processes(
    sources: Sequence[str],
    count: int,
    tracking_uri: str | None,
    detectors: str | None,
    curves: AskedCurves | None = None,
) -> Generator[tuple[int, list[RunCard]], None, None]:
    """For each source its place and its cards, in the order in which they are done."""
    names = (curves.loss, curves.val_loss) if curves else ("", "")
    pool = _Pool(sources, json.dumps({"tracking_uri": tracking_uri, "detectors": detectors, "curves": names}))
    try:
        for _ in range(min(count, len(sources))):
            pool.start()
        yield from pool.answers()
    finally:
        pool.close()
    asked = None if detectors is None else read_detectors(detectors)
    for number, source in pool.waiting:
        yield number, list(cards_at(source, tracking_uri, asked, curves))
