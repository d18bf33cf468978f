"""Every knob of skipping and going back, with the number that holds when nothing is asked.

In: what the user asked for. Out: one frozen policy that the rest of this room reads. Promised: a policy that cannot be
meant is refused here, with the rule and what came.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from mlflow_stability.vocabulary.argument import (
    check_fields,
    check_names,
    made_with_known_names,
    member_of,
    names,
    number,
    one_of,
    whole_number,
    yes_or_no,
)
from mlflow_stability.vocabulary.result.event import Severity
from mlflow_stability.vocabulary.settings import PRESETS

GiveUp = Literal["continue", "raise"]


@made_with_known_names
@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """How broken steps are skipped, what is kept to go back to, when we go back, and when we stop trying."""

    guard: bool | Literal["late"] = field(default=True, metadata=one_of(True, False, "late"))
    """Skip a step whose loss or gradients are not finite. `"late"` never waits for the device: a broken step is taken,
    and answered by going back to the newest state."""
    skip_gradients_above: float | None = field(default=100.0, metadata=number(above=1, optional=True))
    """Skip a step too whose gradient norm is more than so many times the usual one, and ten times the largest of the
    last 256; when that happens three times in a row, the next is taken. None: skip only what is not finite."""
    rollback: bool = field(default=True, metadata=yes_or_no())
    """Go back to a good state when the training diverges; False: only skip broken steps."""

    snapshot_every: int = field(default=100, metadata=whole_number(1))
    """Every how many steps a state is kept in memory, at most."""
    snapshots: int = field(default=3, metadata=whole_number(1))
    """How many states are kept in memory."""
    snapshot_budget: int | None = field(default=None, metadata=whole_number(0, "of bytes", optional=True))
    """How many bytes of host memory they may take together; None: a quarter of what is free at the first one."""
    snapshot_share: float = field(default=0.01, metadata=number(above=0, most=1))
    """The largest share of the training's time that keeping states may take; they come less often if need be."""
    checkpoint_every: int = field(default=500, metadata=whole_number(1))
    """Every how many steps a state is written to disk."""
    max_checkpoints: int = field(default=10, metadata=whole_number(2))
    """How many are kept on disk; the best and the last good one always are."""
    healthy_after: int = field(default=50, metadata=whole_number(1))
    """After how many healthy steps a state counts as good: the poison comes before the alarm."""

    rollback_at: Severity = field(default=Severity.CRITICAL, metadata=member_of(Severity))
    """From which severity on a finding of `rollback_on` leads back."""
    rollback_on: tuple[str, ...] = field(default=("divergence",), metadata=names("a finding", "'divergence'"))
    """The findings that do. A single spike is not among them: most pass by themselves."""
    divergence_threshold: float | None = field(default=None, metadata=number(above=1, optional=True))
    """Diverging is a loss above this multiple of its recent mean; None: our own rule, which needs no number."""
    consecutive_divergence_steps: int = field(default=3, metadata=whole_number(1))
    """For how many steps in a row, where `divergence_threshold` is given."""
    onset_lag: int = field(default=16, metadata=whole_number(0))
    """How many steps before a finding the trouble is taken to have begun, where the finding does not say."""
    rewind: int = field(default=40, metadata=whole_number(0))
    """How many steps before the onset a state must be to be gone back to; doubled each time that trouble repeats."""
    select: Literal["newest", "best"] = field(default="newest", metadata=one_of("newest", "best"))
    """Which of those states: the newest, or the one of the lowest loss."""
    restore_schedule: bool = field(default=False, metadata=yes_or_no())
    """Set schedulers and hyper-parameters back as well; False: they stay where the script has them now."""
    restore_rng: bool = field(default=False, metadata=yes_or_no())
    """Set the random numbers back as well; False: what comes next is drawn afresh, and the trouble need not repeat."""
    recovery_patience: int = field(default=10, metadata=whole_number(0))
    """For how many steps after going back a finding waits: a restored state may need them to settle. Over as many, the
    mean loss then shows whether it holds."""
    same_trouble_within: int = field(default=1000, metadata=whole_number(1))
    """Trouble that begins within so many steps after going back is the same trouble again."""
    max_rollbacks: int = field(default=3, metadata=whole_number(0))
    """How many times we go back before giving up."""
    forgiven_after: int = field(default=2000, metadata=whole_number(1))
    """After how many steps without going back the count begins anew."""
    max_rollbacks_in_all: int = field(default=20, metadata=whole_number(0))
    """How many times we go back in one training, forgiven or not."""
    on_give_up: GiveUp | None = field(default=None, metadata=one_of("continue", "raise", optional=True))
    """Then: do no more than skip broken steps, or raise `TrainingDiverged`. None: raise it where going back was tried
    and did not help, or no step was taken for long; continue where there was no room for a state, or it could not be
    put back."""
    initial_factor: float = field(default=0.1, metadata=number(above=0, most=1))
    """The learning rate after going back to the initial weights, as a share of the script's own and for the rest of
    the training; taken to a power each time, and up to its cube at once where a step had changed the weights by
    more than their norm. They are the last resort, for trouble from the first steps on."""

    easing_factor: float = field(default=0.5, metadata=number(above=0, most=1))
    """The learning rate after going back, as a share of the script's own; taken to a power when trouble repeats."""
    easing_steps: int = field(default=200, metadata=whole_number(1))
    """Over how many steps the learning rate comes back; doubled when trouble repeats."""
    easing_clip: float | None = field(default=2.0, metadata=number(above=1, optional=True))
    """Clip gradients meanwhile at this multiple of their usual norm; None: do not."""
    hold_learning_rate_above: float | None = field(default=3.0, metadata=number(above=1, optional=True))
    """Where the learning rate is more than so many times that of the restored state, a jump is the likely cause: hold
    it down to the restored state's, until the script itself asks for no more than that; None: do not."""
    hold_doubles_in: int = field(default=500, metadata=whole_number(1))
    """In how many steps such a hold doubles what it lets through, so that it ends by itself."""
    reset_momentum: bool = field(default=False, metadata=yes_or_no())
    """Set first moments to zero after going back."""

    cut_after_skips: int = field(default=5, metadata=whole_number(1))
    """After how many skipped steps in a row the loss scale is cut."""
    cut_factor: float = field(default=0.1, metadata=number(above=0, most=1))
    """By how much."""
    smallest_scale: float = field(default=1.0, metadata=number(above=0))
    """A cut ends here."""
    search_skips: int = field(default=16, metadata=whole_number(0))
    """So many skips in a row are normal while a loss scaler looks for its first scale, and are left to it."""
    rollback_after_skips: int = field(default=25, metadata=whole_number(1))
    """After how many skipped steps in a row we go back."""
    tell_every_skips: int = field(default=100, metadata=whole_number(1))
    """After each so many skipped steps in a row it is said again: a training that stands still must not look fine."""
    critical_skip_share: float = field(default=0.05, metadata=number(above=0))
    """From which share of the last `skip_window` steps on skipping is critical."""
    skip_window: int = field(default=300, metadata=whole_number(1))
    """Over how many steps that share is taken."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with what the knob takes and what it got."""
        check_fields(self)

    @classmethod
    def preset(cls, name: str, **changed: Any) -> RollbackPolicy:
        """The policy of a preset: `research`, `production` or `debugging`; with what you give on top."""
        one_of(*PRESETS)["takes"].checked("preset", name)
        check_names("RollbackPolicy.preset()", changed, [each.name for each in dataclasses.fields(cls)])
        return cls(**(_PRESETS[name] | changed))


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
