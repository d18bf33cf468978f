"""Names of findings, rules and causes on the command line: checked, with the nearest ones, and completed."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, name_of
from mlflow_stability.reports.escape import plain
from mlflow_stability.vocabulary.text.foreign_names import resolve_kind, similar_kinds

RULES_ON_REQUEST = tuple(map(name_of, ON_REQUEST))  # rules that run on request only
RULES_BESIDE = tuple(name_of(detector) for detector in DETECTORS if detector.rule)
"""Rules beside the usual one of their kind: `divergence:start`."""
CAUSES = tuple(causes())
EXPLAINED = tuple(dict.fromkeys((*KINDS, *RULES_BESIDE, *RULES_ON_REQUEST, *CAUSES)))
"""Every finding, rule and cause that a report may name."""


def checked_kind(typed: str, names: Sequence[str] = KINDS) -> str:
    """Return the kind that was meant: `loss-spike` is `loss_spike`, and `nan` is `nan_detected`."""
    kind = resolve_kind(typed, names)
    if kind in names:
        return kind
    near = similar_kinds(kind, names)
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise click.BadParameter(
        f"No such finding or cause: {plain(typed, 60)!r}. {hint}`mlflow-stability explain` lists them all."
    )


def checked_kinds(_context: click.Context, _option: click.Parameter, typed: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(checked_kind, typed))


def checked_kind_if_any(_context: click.Context, _option: click.Parameter, typed: str | None) -> str | None:
    return None if typed is None else checked_kind(typed)


def checked_rule_if_any(_context: click.Context, _option: click.Parameter, typed: str | None) -> str | None:
    """Check a kind, a rule such as `loss_spike:classic`, or a cause such as `bad_batch`."""
    return None if typed is None else checked_kind(typed, EXPLAINED)


def complete_kinds(_context: click.Context, _option: click.Parameter, prefix: str) -> list[CompletionItem]:
    return [CompletionItem(kind) for kind in KINDS if kind.startswith(prefix.replace("-", "_"))]


def complete_explained(_context: click.Context, _option: click.Parameter, prefix: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in EXPLAINED if name.startswith(prefix.replace("-", "_"))]
