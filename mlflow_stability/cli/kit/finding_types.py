"""The kinds of judgement, as people type them: checked, with the nearest ones where one is unknown, and completed."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, name_of
from mlflow_stability.reports.escape import plain
from mlflow_stability.vocabulary.text import resolve_kind, similar_kinds

RULES_ON_REQUEST = tuple(name_of(each) for each in ON_REQUEST)
"""The names of rules that look only when they are asked for."""
RULES_BESIDE = tuple(name_of(each) for each in DETECTORS if each.rule)
"""The names of rules that look beside the usual one of their kind: ``divergence:start``."""
CAUSES = tuple(causes())
EXPLAINED = tuple(dict.fromkeys((*KINDS, *RULES_BESIDE, *RULES_ON_REQUEST, *CAUSES)))
"""Every name that a report may print of a finding, a rule or a cause."""


def checked_kind(typed: str, known: Sequence[str] = KINDS) -> str:
    """The kind that was meant: ``loss-spike`` is ``loss_spike``, and ``nan`` is ``nan_detected``."""
    kind = resolve_kind(typed, known)
    if kind in known:
        return kind
    near = similar_kinds(kind, known)
    meant = f"Did you mean {', '.join(near)}? " if near else ""
    raise click.BadParameter(
        f"No such finding or cause: {plain(typed, 60)!r}. {meant}`mlflow-stability explain` lists them all."
    )


def checked_kinds(_context: click.Context, _option: click.Parameter, typed: tuple[str, ...]) -> tuple[str, ...]:
    """Each of several."""
    return tuple(checked_kind(each) for each in typed)


def checked_kind_if_any(_context: click.Context, _option: click.Parameter, typed: str | None) -> str | None:
    """One, or none."""
    return None if typed is None else checked_kind(typed)


def checked_rule_if_any(_context: click.Context, _option: click.Parameter, typed: str | None) -> str | None:
    """One, which may also be a rule, ``loss_spike:classic``, or a cause, ``bad_batch``."""
    return None if typed is None else checked_kind(typed, EXPLAINED)


def complete_kinds(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may offer."""
    return [CompletionItem(kind) for kind in KINDS if kind.startswith(begun.replace("-", "_"))]


def complete_explained(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may offer where rules and causes are known, too."""
    return [CompletionItem(name) for name in EXPLAINED if name.startswith(begun.replace("-", "_"))]
