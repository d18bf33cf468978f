"""Make cards in several processes, or on a `dask.distributed` cluster.

Each worker has one source to work on and one waiting, so that memory does not grow with their number. A worker that
dies costs the source that it was reading, and another takes its place. If none can be started that judges by our rules,
this process reads by itself. All workers are gone after the last answer, or when the caller stops.

A worker is a program of its own rather than a fork, because the caller may be a script without a guard around its main
part, or may hold threads and connections. It reads from stdin a line of JSON with the settings, then a source a line;
it writes to stdout its rules, then a line for each source with its number and the texts of its cards. It ends within
seconds after its caller, and removes the files that it had fetched.

The workers of a cluster need this very package, and have to reach the tracking store by the same address. A failure
there, or other rules than ours, is a card with the error.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import mlflow_stability
from mlflow_stability.analysis.cards import rules_here
from mlflow_stability.analysis.diagnose import cards_at, texts_at
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_from_json

AHEAD = 2  # sources that a worker holds
DIED = "The process that read this run ended early (out of memory?). Try this run alone."
PATIENCE = 3.0  # seconds that a worker has for tidying up
_CHUNK = 1 << 20
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from mlflow_stability.analysis.card_workers import main
main()
"""
"""With the path of this process: `-m` would look first where it runs, and take a `queue.py` there for Python's own."""


class _Worker:
    """One process, its sources, and the unfinished line of its answer."""

    def __init__(self, settings: str, room: str) -> None:
        package = str(Path(mlflow_stability.__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *(path for path in sys.path if isinstance(path, str)), package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller, which ends this one
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": room},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self.out = self.process.stdin, self.process.stdout
        self.held: dict[int, str] = {}  # sources without an answer, by number; it reads the first of them
        self.ready = False
        self._pending = b""
        self._say(settings)

    def give(self, number: int, source: str) -> None:
        self.held[number] = source
        self._say(json.dumps([number, source]))

    def answers(self) -> Iterator[tuple[int, list[RunCard]]] | None:
        """Return complete answers; None when it has ended."""
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
            else:  # we were installed again while this process runs: its cards would be others than ours
                self.process.kill()
                return

    def _say(self, line: str) -> None:
        try:
            self._in.write(line.encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            return  # it has ended, which its other pipe shows


class _Pool:
    """Running processes, and sources that wait for them."""

    def __init__(self, sources: Sequence[str], settings: str) -> None:
        self.waiting = deque(enumerate(sources))
        self._settings = settings
        self._room: TemporaryDirectory[str] | None = None
        """Their temporary folder: they may be killed before they can remove it."""
        self._workers: list[_Worker] = []
        self._listening = selectors.DefaultSelector()

    def start(self) -> None:
        """Start one more process, if the system has one."""
        try:
            self._room = self._room or TemporaryDirectory(prefix="mlflow-stability-", ignore_cleanup_errors=True)
            worker = _Worker(self._settings, self._room.name)
        except (OSError, TypeError):  # no memory, no process, or no interpreter that could be started
            return
        self._workers.append(worker)
        self._listening.register(worker.out, selectors.EVENT_READ, worker)
        self._fill(worker)

    def answers(self) -> Iterator[tuple[int, list[RunCard]]]:
        """Yield answers until no process is left with something to do."""
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
        """Report the source that it was reading; the rest goes to another, unless it died before it could begin."""
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
    """Yield the place and the cards of each source, in order of completion."""
    names = (curves.loss, curves.val_loss) if curves else ("", "")
    pool = _Pool(sources, json.dumps({"tracking_uri": tracking_uri, "detectors": detectors, "curves": names}))
    try:
        for _ in range(min(count, len(sources))):
            pool.start()
        yield from pool.answers()
    finally:
        pool.close()
    judges = None if detectors is None else read_detectors(detectors)
    for number, source in pool.waiting:
        yield number, list(cards_at(source, tracking_uri, judges, curves))


def main() -> None:
    """Run a worker: answer until the caller is gone."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up between the answers
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    settings = json.loads(lines.get())
    answers.write(json.dumps(rules_here()) + "\n")
    answers.flush()
    while True:
        number, source = json.loads(lines.get())
        texts = texts_at(source, settings["tracking_uri"], settings["detectors"], settings["curves"])
        answers.write(json.dumps([number, texts]) + "\n")
        answers.flush()


def _listen(lines: SimpleQueue[bytes]) -> None:
    """Pass lines on; end this process when the caller is gone, even in the middle of a run."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            lines.put(line)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(0)


DEADLINE = 20  # seconds that the scheduler has for its first answer
AT_ONCE = 1000  # sources that are submitted at a time
GONE = "The cluster disconnected before the run was read."


def cards_from_dask(
    sources: Sequence[str],
    address: str,
    tracking_uri: str | None,
    detectors: str | None,
    curves: AskedCurves | None = None,
) -> Iterator[tuple[int, list[RunCard]]]:
    """Yield the place and the cards of each source, in order of completion."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise SettingsError(
            "--dask needs dask.distributed, which is not installed here: pip install 'mlflow-stability[dask]'."
        ) from None
    try:
        client = Client(address, timeout=DEADLINE, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise SettingsError(
            f"The dask scheduler at {address!r} does not answer ({type(error).__name__}). Is it running, and is the "
            "address right? It looks like tcp://10.0.0.1:8786."
        ) from error
    # Workers run in other folders: what is relative here would be something else there.
    names = (curves.loss, curves.val_loss) if curves else ("", "")
    store = tracking_uri_for(None, str(Path.cwd()), tracking_uri)
    with client:
        for begin in range(0, len(sources), AT_ONCE):
            part = sources[begin : begin + AT_ONCE]
            if client.status != "running":
                yield from ((begin + place, [RunCard(source, source, error=GONE)]) for place, source in enumerate(part))
                continue
            futures = [client.submit(judged_there, _absolute(run), store, detectors, names, pure=False) for run in part]
            places = {future.key: place for place, future in enumerate(futures, start=begin)}
            for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
                yield places[future.key], _cards(future, sources[places[future.key]])


def judged_there(
    source: str, tracking_uri: str, detectors: str | None, curves: Sequence[str] = ("", "")
) -> tuple[str, list[str]]:
    """Run on a worker of the cluster: return its rules, and the cards as texts."""
    return rules_here(), texts_at(source, tracking_uri, detectors, curves)


def _cards(future: object, source: str) -> list[RunCard]:
    try:
        rules, texts = future.result()  # type: ignore[attr-defined]
    except CancelledError:
        return [RunCard(source, source, error=GONE)]
    except Exception as error:  # whatever was raised there
        reason = f"The cluster could not read it: {type(error).__name__}, {error}."
        return [RunCard(source, source, error=reason)]
    if rules != rules_here():
        reason = (
            f"The cluster has other detection rules than this machine (mlflow-stability {_version(rules)} there, "
            f"{_version(rules_here())} here): install the same there."
        )
        return [RunCard(source, source, error=reason)]
    return [_as_asked(card_from_json(text), source) for text in texts]


def _absolute(source: str) -> str:
    return os.path.abspath(source) if os.path.lexists(source) else source  # noqa: PTH100 - may be a run's id


def _as_asked(card: RunCard, source: str) -> RunCard:
    """Return the card with the path as it was asked for."""
    if not os.path.lexists(source):
        return card
    within = os.path.relpath(card.source, _absolute(source))
    return replace(card, source=source if within == os.curdir else os.path.join(source, within))  # noqa: PTH118


def _version(rules: str) -> str:
    version, _, fingerprint = rules.partition("\n")
    return f"{version} ({fingerprint[:8]})"
