"""Tells one state of our rules from another, also where both call themselves by the same version.

In: our own files. Out: a hash of all that a card of a run depends on. Promised: it is found once, and in a zip file,
too; where the files cannot be read it is empty, and the version alone tells.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib import resources

import mlflow_stability

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable

ROOMS = ("vocabulary", "detectors", "diagnosis", "tracking", "importers", "analysis")
"""What reads a run and what judges it."""


def rules_here() -> str:
    """The rules that cards are made by in this process: the version and the fingerprint."""
    return f"{mlflow_stability.__version__}\n{fingerprint_of_rules()}"


@cache
def fingerprint_of_rules() -> str:
    """The hash of the rules as they are installed; empty where they cannot be read."""
    return fingerprint_of(resources.files("mlflow_stability"))


def fingerprint_of(package: Traversable) -> str:
    """The hash of the rules in this folder."""
    found = hashlib.sha256()
    files = 0
    try:
        for room in ROOMS:
            for file in sorted(package.joinpath(room).iterdir(), key=lambda each: each.name):
                if file.name.endswith(".py"):
                    content = file.read_bytes()
                    found.update(f"{room}/{file.name} {len(content)}\n".encode())
                    found.update(content)
                    files += 1
    except OSError:
        return ""
    return found.hexdigest() if files else ""
