"""Deliver facts about the training and the git state of its code.

Facts that people choose are parameters of the run, all are in `stability/data/environment.json`. Guarantees: git is
asked once, writes nothing, runs no watcher and no diff tool, for a few seconds at most; values that the store refuses
are logged once and block nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import RunSink
from mlflow_stability.journal.journal import Record
from mlflow_stability.tracking.artifacts import DATA_FOLDER
from mlflow_stability.tracking.run_writer import RunWriter, is_chosen
from mlflow_stability.vocabulary.run import Fact, Opening

SECONDS = 5.0  # limit for one git call: work trees on network file systems can be slow
MOST_LINES = 50  # of the diff summary, and of untracked files
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
# A repository can name programs that git runs while it looks around: a watcher of files, a way to show differences.
_PLAIN = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--no-pager")


def git_state(directory: str) -> dict[str, str]:
    status = _git(
        directory, "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty"
    )
    if status is None:
        return {}
    head = dict(line[2:].split(" ", 1) for line in status if line.startswith("# ") and " " in line[2:])
    changed = [line for line in status if line and not line.startswith("#")]
    commit = head.get("branch.oid", "")
    facts = {
        "git.commit": "" if commit == "(initial)" else commit,
        "git.branch": head.get("branch.head", ""),
        "git.dirty": str(bool(changed)),
    }
    if changed and facts["git.commit"]:
        options = ("--stat=120", f"--stat-count={MOST_LINES}", "--no-ext-diff", "--no-textconv", "HEAD")
        facts["git.diff"] = "\n".join(_git(directory, "diff", *options) or ())
    untracked = _git(directory, "ls-files", "--others", "--exclude-standard", "--", "*.py") or []
    more = [f"and {len(untracked) - MOST_LINES} more"] if len(untracked) > MOST_LINES else []
    facts["git.untracked"] = "\n".join([*untracked[:MOST_LINES], *more])
    return {key: value for key, value in facts.items() if value}


def _git(directory: str, *words: str) -> list[str] | None:
    if not directory or not Path(directory).is_dir():
        return None
    try:
        answer = subprocess.run(
            ["git", *_PLAIN, *words],  # noqa: S607 - the git that the user would run
            cwd=directory,
            env={**os.environ, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode:
        return None
    return answer.stdout.decode(errors="replace").rstrip("\n").split("\n") if answer.stdout.strip() else []


ASK_WITHIN = 600.0
"""Seconds after the start of a recording during which the code on disk is assumed to be the running code."""


class FactSink(RunSink):
    words = "parameters"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self._params = writer.params(self._number)
        self._facts = dict(delivered.git or {})
        self._sent: set[str] = set()

    def take(self, record: Record) -> None:
        """Keep a fact; the first one of its name counts, after those of git."""
        if isinstance(record, Fact):
            self._facts.setdefault(record.key, record.value)

    def flush(self, over: bool) -> bool:
        """Send new facts, if any."""
        new = {key: value for key, value in self._facts.items() if key not in self._sent}
        if new:
            self._params.write({key: value for key, value in new.items() if is_chosen(key, value)})
            self._writer.refused.update(self._params.refused)
            name = f"environment_{self._number + 1}.json" if self._number else "environment.json"
            self.upload(DATA_FOLDER, name, json.dumps(self._facts, indent=1, ensure_ascii=False) + "\n")
            self._sent |= new.keys()
        return False if self.more else self.rest(over)


def ask_git(delivered: Delivered, opening: Opening) -> None:
    """Ask git once; the answer is saved with the recording."""
    if delivered.git is None:
        fresh = time.time() - opening.time < ASK_WITHIN
        delivered.git = git_state(opening.directory) if fresh else {}
        delivered.save()
