"""Asks git what a training's code is: the commit, and what was changed since.

In: the working directory of the training. Out: facts: ``git.commit``, ``git.branch``, ``git.dirty``, ``git.diff`` (a
summary), ``git.untracked`` (Python files that no commit has). Promised: nothing of the repository is written, no
watcher and no difference tool of its configuration is run, each answer is waited for a few seconds at most; where there
is no git or no repository, there are no facts.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SECONDS = 5.0
"""For how long one question may take: work trees on network file systems can be slow."""
MOST_LINES = 50
"""Of the summary, and of untracked files."""
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
# A repository can name programs that git runs while it looks around: a watcher of files, a way to show differences.
_PLAIN = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--no-pager")


def git_state(directory: str) -> dict[str, str]:
    """What git says of the code in a directory; nothing where it says nothing."""
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
    facts["git.untracked"] = "\n".join(_some(untracked))
    return {key: value for key, value in facts.items() if value}


def _some(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more"]


def _git(directory: str, *words: str) -> list[str] | None:
    """The lines of an answer; None where there is none."""
    if not directory or not Path(directory).is_dir():
        return None
    try:
        answer = subprocess.run(
            ["git", *_PLAIN, *words],
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
