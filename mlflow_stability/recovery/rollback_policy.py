"""Every knob of skipping and going back, with the number that holds when nothing is asked.

In: what the user asked for. Out: one frozen policy that the rest of this room reads. Promised: a policy that cannot be
meant is refused here, with the rule and what came.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.event import Severity


@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """How broken steps are skipped, what is kept to go back to, when we go back, and when we stop trying."""

    guard: bool | Literal["late"] = True
    """Skip a step whose loss or gradients are not finite. `"late"` never waits for the device: a broken step is taken,
    and answered by going back to the newest state."""
    skip_gradients_above: float | None = 100.0
    """Skip a step too whose gradient norm is more than so many times the usual one, and ten times the largest of the
    last 256; when that happens three times in a row, the next is taken. None: skip only what is not finite."""
    rollback: bool = True
    """Go back to a good state when the training diverges; False: only skip broken steps."""

    snapshot_every: int = 100
    """Every how many steps a state is kept in memory, at most."""
    snapshots: int = 3
    """How many states are kept in memory."""
    snapshot_budget: int | None = None
    """How many bytes of host memory they may take together; None: a quarter of what is free at the first one."""
    snapshot_share: float = 0.01
    """The largest share of the training's time that keeping states may take; they come less often if need be."""
    checkpoint_every: int = 500
    """Every how many steps a state is written to disk."""
    max_checkpoints: int = 10
    """How many are kept on disk; the best and the last good one always are."""
    healthy_after: int = 50
    """After how many healthy steps a state counts as good: the poison comes before the alarm."""

    rollback_at: Severity = Severity.CRITICAL
    """From which severity on a finding of `rollback_on` leads back."""
    rollback_on: tuple[str, ...] = ("divergence",)
    """The findings that do. A single spike is not among them: most pass by themselves."""
    divergence_threshold: float | None = None
    """Diverging is a loss above this multiple of its recent mean; None: our own rule, which needs no number."""
    consecutive_divergence_steps: int = 3
    """For how many steps in a row, where `divergence_threshold` is given."""
    onset_lag: int = 16
    """How many steps before a finding the trouble is taken to have begun, where the finding does not say."""
    rewind: int = 40
    """How many steps before the onset a state must be to be gone back to; doubled each time that trouble repeats."""
    select: Literal["newest", "best"] = "newest"
    """Which of those states: the newest, or the one of the lowest loss."""
    restore_schedule: bool = False
    """Set schedulers and hyper-parameters back as well; False: they stay where the script has them now."""
    restore_rng: bool = False
    """Set the random numbers back as well; False: what comes next is drawn afresh, and the trouble need not repeat."""
    recovery_patience: int = 10
    """For how many steps after going back a finding waits: a restored state may need them to settle. Over as many, the
    mean loss then shows whether it holds."""
    same_trouble_within: int = 1000
    """Trouble that begins within so many steps after going back is the same trouble again."""
    max_rollbacks: int = 3
    """How many times we go back before giving up."""
    forgiven_after: int = 2000
    """After how many steps without going back the count begins anew."""
    max_rollbacks_in_all: int = 20
    """How many times we go back in one training, forgiven or not."""
    on_give_up: Literal["continue", "raise"] = "continue"
    """Then: do no more than skip broken steps, or raise `TrainingDiverged`."""

    easing_factor: float = 0.5
    """The learning rate after going back, as a share of the script's own; taken to a power when trouble repeats."""
    easing_steps: int = 200
    """Over how many steps the learning rate comes back; doubled when trouble repeats."""
    easing_clip: float | None = 2.0
    """Clip gradients meanwhile at this multiple of their usual norm; None: do not."""
    hold_learning_rate_above: float | None = 3.0
    """Where the learning rate is more than so many times that of the restored state, a jump is the likely cause: hold
    it down to the restored state's, until the script itself asks for no more than that; None: do not."""
    hold_doubles_in: int = 500
    """In how many steps such a hold doubles what it lets through, so that it ends by itself."""
    reset_momentum: bool = False
    """Set first moments to zero after going back."""

    cut_after_skips: int = 5
    """After how many skipped steps in a row the loss scale is cut."""
    cut_factor: float = 0.1
    """By how much."""
    smallest_scale: float = 1.0
    """A cut ends here."""
    search_skips: int = 16
    """So many skips in a row are normal while a loss scaler looks for its first scale, and are left to it."""
    rollback_after_skips: int = 25
    """After how many skipped steps in a row we go back."""
    tell_every_skips: int = 100
    """After each so many skipped steps in a row it is said again: a training that stands still must not look fine."""
    critical_skip_share: float = 0.05
    """From which share of the last `skip_window` steps on skipping is critical."""
    skip_window: int = 300
    """Over how many steps that share is taken."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with the rule and what came."""
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("rewind", "recovery_patience", "max_rollbacks", "max_rollbacks_in_all", "onset_lag"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must be 0 or more, got {getattr(self, name)}.")
        for name in ("easing_factor", "cut_factor"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingsError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}.")
        for name in ("easing_clip", "divergence_threshold", "hold_learning_rate_above", "skip_gradients_above"):
            given = getattr(self, name)
            if given is not None and not given > 1:
                raise SettingsError(f"{name} must be above 1, got {given}.")
        if self.guard not in (True, False, "late"):
            raise SettingsError(f"guard must be True, False or 'late', got {self.guard!r}.")
        if self.select not in ("newest", "best"):
            raise SettingsError(f"select must be 'newest' or 'best', got {self.select!r}.")
        if self.on_give_up not in ("continue", "raise"):
            raise SettingsError(f"on_give_up must be 'continue' or 'raise', got {self.on_give_up!r}.")

    @classmethod
    def preset(cls, name: str, **changed: Any) -> RollbackPolicy:
        """The policy of a preset: `research`, `production` or `debugging`; with what you give on top."""
        if name not in _PRESETS:
            raise SettingsError(f"preset must be one of {', '.join(sorted(_PRESETS))}, got {name!r}.")
        known = {each.name for each in dataclasses.fields(cls)}
        if unknown := sorted(set(changed) - known):
            raise SettingsError(f"A rollback policy has no {', '.join(unknown)}.")
        return cls(**(_PRESETS[name] | changed))


_AT_LEAST_ONE = (
    "snapshot_every",
    "snapshots",
    "checkpoint_every",
    "max_checkpoints",
    "healthy_after",
    "consecutive_divergence_steps",
    "same_trouble_within",
    "forgiven_after",
    "easing_steps",
    "hold_doubles_in",
    "cut_after_skips",
    "rollback_after_skips",
    "tell_every_skips",
    "skip_window",
)

_PRESETS: dict[str, dict[str, Any]] = {
    # Quick to act: an experiment that is set back once too often costs little.
    "research": {"divergence_threshold": 1.5, "checkpoint_every": 500},
    # Slow to act: a long training is set back only for good reason, and further.
    "production": {
        "divergence_threshold": 2.5,
        "checkpoint_every": 1000,
        "rewind": 100,
        "onset_lag": 32,
        "recovery_patience": 50,
    },
    # Everything often, and nothing hidden: the training stops where we can do no more.
    "debugging": {
        "divergence_threshold": 1.2,
        "checkpoint_every": 100,
        "snapshot_every": 20,
        "snapshot_share": 0.1,
        "on_give_up": "raise",
    },
}
