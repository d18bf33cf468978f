"""Works for a process that makes cards: the program that `worker_pool` starts.

In, on stdin: one line of JSON that says where runs live and how to judge, then a source a line. Out, on stdout: by
which rules it judges, when it is ready, then a line for each source, with its number and the texts of its cards. It is
a program of its own rather than a fork of the one that asks, for that one may be a script without a guard around its
main part, or may hold threads and connections. Guarantees: it ends within seconds when the one that asks does, however
that comes about, and takes along the files that it had fetched.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from queue import SimpleQueue

from mlflow_stability.analysis.cards.card_cache import rules_here
from mlflow_stability.analysis.cards.one_card import texts_at

PATIENCE = 3.0
"""Seconds that are left for tidying up."""


def main() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up between the answers
    asked: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    settings = json.loads(asked.get())
    answers.write(json.dumps(rules_here()) + "\n")
    answers.flush()
    while True:
        number, source = json.loads(asked.get())
        texts = texts_at(source, settings["tracking_uri"], settings["detectors"], settings["curves"])
        answers.write(json.dumps([number, texts]) + "\n")
        answers.flush()


def _listen(asked: SimpleQueue[bytes]) -> None:
    """Pass on what is asked; end this process when whoever asked is gone, even in the middle of a run."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            asked.put(line)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(0)


if __name__ == "__main__":
    main()
