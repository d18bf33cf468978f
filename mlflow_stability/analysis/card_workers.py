"""Make cards in several processes, or on a `dask.distributed` cluster.

Each process reads one source at a time. One that dies costs the source that it was reading, and another takes its
place. If none can be started that judges by our rules, this process reads by itself. All are gone after the last
answer, or when the caller stops.

A process is a program of its own rather than a fork, because the caller may be a script without a guard around its main
part, or may hold threads and connections. It reads from stdin a line of JSON with the settings, then a source a line;
it writes to stdout its rules, then a line for each source with the texts of its cards. It ends within seconds after its
caller, and removes the files that it had fetched.

The workers of a cluster need this very package, and have to reach the tracking store by the same address. A failure
there, or other rules than ours, is a card with the error.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from queue import Queue, SimpleQueue
from tempfile import TemporaryDirectory

import mlflow_stability
from mlflow_stability.analysis.cards import rules_here
from mlflow_stability.analysis.diagnose import as_typed, cards_at, texts_at
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_from_json

DIED = "The process that read this run ended early (out of memory?). Try this run alone."
PATIENCE = 3.0  # seconds that a process has for tidying up
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from mlflow_stability.analysis.card_workers import main
main()
"""
"""With the path of this process: `-m` would look first where it runs, and take a `queue.py` there for Python's own."""
_Answer = tuple[int, list[RunCard]]  # the number of a source, and its cards


class _Pool:
    """Processes that read sources, each served by a thread here."""

    def __init__(self, sources: Sequence[str], settings: str, room: str) -> None:
        self.waiting = deque(enumerate(sources))
        self.answers: Queue[_Answer | None] = Queue(maxsize=1)  # None: a thread has ended
        self._settings = settings
        self._room = room  # their temporary folder: they may be killed before they can remove it
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def serve(self) -> None:
        """Have one process after another read sources until none waits."""
        try:
            while self.waiting and (process := self._start()) is not None:
                if not self._read_with(process):
                    break
        finally:
            self.answers.put(None)

    def close(self) -> None:
        """Leave the waiting sources, and end all processes."""
        with self._lock:
            self._is_closed = True
        for process in self._processes:
            process.kill()
            with contextlib.suppress(BrokenPipeError), process:  # what it had not read is gone with it
                pass

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start a process that judges by our rules; None if there is none."""
        package = str(Path(mlflow_stability.__file__).parent.parent)
        with self._lock:
            if self._is_closed:
                return None
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *(path for path in sys.path if isinstance(path, str)), package],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the caller, which ends this one
                    env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self._room},
                )
            except (OSError, TypeError):  # no memory, no process, or no interpreter that could be started
                return None
            self._processes.append(process)
        # We may have been installed again while this process runs: its cards would be others than ours.
        return process if _asked(process, self._settings) == json.dumps(rules_here()).encode() + b"\n" else None

    def _read_with(self, process: subprocess.Popen[bytes]) -> bool:
        """Have a process read sources until none waits; return whether it died while it read one."""
        while self.waiting and not self._is_closed:
            try:
                number, source = self.waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            line = _asked(process, json.dumps(source))
            if not line.endswith(b"\n"):
                self.answers.put((number, [RunCard(source, source, error=DIED)]))
                return True
            self.answers.put((number, [card_from_json(text) for text in json.loads(line)]))
        return False


def _asked(process: subprocess.Popen[bytes], line: str) -> bytes:
    """Return the line that a process answers; empty, or a part of it, if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        return process.stdout.readline()
    except (BrokenPipeError, ValueError):  # it has ended, or was closed meanwhile
        return b""


def cards_from_processes(
    sources: Sequence[str],
    count: int,
    tracking_uri: str | None,
    detectors: str | None,
    curves: AskedCurves | None = None,
) -> Generator[_Answer, None, None]:
    """Yield the place and the cards of each source, in order of completion."""
    names = (curves.loss, curves.val_loss) if curves else ("", "")
    settings = json.dumps({"tracking_uri": tracking_uri, "detectors": detectors, "curves": names})
    with TemporaryDirectory(prefix="mlflow-stability-", ignore_cleanup_errors=True) as room:
        pool = _Pool(sources, settings, room)
        running = min(count, len(sources))
        for _ in range(running):
            threading.Thread(target=pool.serve, daemon=True).start()
        try:
            while running:
                answer = pool.answers.get()
                if answer is None:
                    running -= 1
                else:
                    yield answer
        finally:
            pool.close()
            while running:  # threads that wait to hand over an answer
                running -= pool.answers.get() is None
    judges = None if detectors is None else read_detectors(detectors)
    for number, source in pool.waiting:
        yield number, list(cards_at(source, tracking_uri, judges, curves))


def main() -> None:
    """Answer until the caller is gone: what such a process runs."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up between the answers
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    settings = json.loads(lines.get())
    answer: object = rules_here()
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        source = json.loads(lines.get())
        answer = texts_at(source, settings["tracking_uri"], settings["detectors"], settings["curves"])


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
    cards = map(card_from_json, texts)
    if not os.path.lexists(source):
        return list(cards)
    return [replace(card, source=as_typed(card.source, source, _absolute(source))) for card in cards]


def _absolute(source: str) -> str:
    return os.path.abspath(source) if os.path.lexists(source) else source  # noqa: PTH100 - may be a run's id


def _version(rules: str) -> str:
    version, _, fingerprint = rules.partition("\n")
    return f"{version} ({fingerprint[:8]})"
