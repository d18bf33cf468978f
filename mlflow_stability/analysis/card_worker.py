"""A process that makes cards for another: `python -m mlflow_stability.analysis.card_worker`.

In, on stdin: one line of JSON that says where runs live and how to judge, then a source a line. Out, on stdout: a line
for each, with its number and the texts of its cards. It is a program of its own rather than a fork of the one that
asks, for that one may be a script without a guard around its main part, or may hold threads and connections.
"""

from __future__ import annotations

import json
import os
import sys

from mlflow_stability.analysis.one_card import texts_at


def main() -> None:
    """Answer until nothing more is asked."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up between the answers
    settings = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        number, source = json.loads(line)
        answers.write(json.dumps([number, texts_at(source, settings["tracking_uri"], settings["detectors"])]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
