"""Options of skipping and rolling back, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mlflow_stability.vocabulary.argument import (
    boolean,
    check_fields,
    check_init_arguments,
    check_names,
    member_of,
    names,
    number,
    one_of,
    stateful,
    text,
    whole_number,
)
from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.result.finding import Severity

ActAhead = Literal["checkpoint", "ease"]
GiveUp = Literal["continue", "raise"]


@check_init_arguments
@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """Which states are kept, when the training goes back to one, how it continues, and when to give up.

    Given as `autolog(rollback=RollbackPolicy(...))`. Raises `SettingsError` for a value that does not fit.

    Example:

        >>> RollbackPolicy(max_checkpoints=5, best_by="val_loss").best_mode
        'min'
        >>> RollbackPolicy.preset("production", max_checkpoints=3).rewind
        100
    """

    skip_gradients_above: float | None = field(default=100.0, metadata=number(above=1, optional=True))
    """Skip steps too whose gradient norm exceeds this multiple of the usual norm and ten times the largest of all steps
    taken since the first one or the last rollback, where the loss is ten times its largest as well; else the norm must
    be ten times as large. Where at least one in 1000 steps is as large, three are skipped and the next are taken. None:
    skip only non-finite steps."""

    snapshot_every: int = field(default=100, metadata=whole_number(1))
    """Smallest interval in steps between snapshots in memory."""
    snapshots: int = field(default=3, metadata=whole_number(1))  # number of snapshots in memory
    snapshot_budget: int | None = field(default=None, metadata=whole_number(0, "of bytes", optional=True))
    """Bytes of host memory for all snapshots of a process; None: a quarter of the free memory at the first one, shared
    by the processes of a training that run on one machine."""
    snapshot_share: float = field(default=0.01, metadata=number(above=0, at_most=1))
    """Largest share of the training's time spent on snapshots; above it they become less frequent."""
    rollback_checkpoint_interval: int = field(default=500, metadata=whole_number(1))
    """Interval in steps between checkpoints on disk, in `checkpoints/` of the journal's folder."""
    max_checkpoints: int = field(default=10, metadata=whole_number(2))
    """Number of checkpoints kept; the best and the last good one are always among them."""
    best_by: str | None = field(default=None, metadata=text("the name of a metric", "'val_loss'", optional=True))
    """The metric that says which state is the best: "val_loss" or another one that the script logs to MLflow. A state
    is written at each new best value. None: the training loss."""
    best_mode: Literal["min", "max"] = field(default="min", metadata=one_of("min", "max"))
    """Whether its lowest or its highest value is the best."""
    extra_state: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata=stateful("{'sampler': sampler}"))
    """Objects by name whose `state_dict()` goes into each checkpoint, such as `{"sampler": sampler}`;
    `restore(extra_state=...)` loads it."""
    healthy_after: int = field(default=50, metadata=whole_number(1))
    """Number of healthy steps after which a state counts as good, because damage precedes its finding."""

    rollback_at: Severity = field(default=Severity.CRITICAL, metadata=member_of(Severity))
    """Lowest severity at which a finding of `rollback_on` triggers a rollback."""
    rollback_on: tuple[str, ...] = field(default=("divergence",), metadata=names("a finding", "'divergence'"))
    """Findings that trigger a rollback. Single spikes are not among them: most recover by themselves."""
    divergence_threshold: float | None = field(default=None, metadata=number(above=1, optional=True))
    """Report divergence too when the loss exceeds this multiple of its mean over 100 steps."""
    consecutive_divergence_steps: int = field(default=3, metadata=whole_number(1))
    """Number of consecutive steps, with `divergence_threshold`."""
    onset_lag: int = field(default=16, metadata=whole_number(0))
    """Steps between onset and finding, where the finding has no onset."""
    rewind: int = field(default=40, metadata=whole_number(0))
    """Smallest distance in steps from the restored state to the onset; doubled at each repetition."""
    rollback_target: Literal["newest", "best"] = field(default="newest", metadata=one_of("newest", "best"))
    """Which of those states is restored: the newest, or the one with the lowest loss."""
    restore_schedule: bool = field(default=False, metadata=boolean())
    """Restore schedulers and hyper-parameters too; False: they keep their present values."""
    restore_rng: bool = field(default=False, metadata=boolean())
    """Restore random number generators too; False: later random numbers differ from those before the rollback."""
    recovery_patience: int = field(default=10, metadata=whole_number(0))
    """Number of steps after a rollback in which findings are ignored, while the restored state settles. Their mean loss
    then decides whether the rollback worked."""
    same_trouble_within: int = field(default=1000, metadata=whole_number(1))
    """A finding within this many steps after a rollback counts as a repetition."""
    max_rollbacks: int = field(default=3, metadata=whole_number(0))
    """Number of rollbacks before giving up. 0: never roll back, only skip broken steps, and keep checkpoints where
    `stop_on` or `best_by` needs them; with `on_give_up="raise"`, raise at the first divergence."""
    forgiven_after: int = field(default=2000, metadata=whole_number(1))
    """Number of steps without a rollback after which their count restarts."""
    max_rollbacks_in_all: int = field(default=20, metadata=whole_number(0))
    """Number of rollbacks in one training, regardless of `forgiven_after`."""
    on_give_up: GiveUp | None = field(default=None, metadata=one_of("continue", "raise", optional=True))
    """After the last rollback: "continue" without rollbacks and only skip broken steps, or "raise" `TrainingDiverged`.
    None: continue, and raise where nothing is left to lose: weights that are not finite and no finite state to restore,
    or `raise_after_skips` skipped steps."""
    raise_after_skips: int | None = field(default=100, metadata=whole_number(1, optional=True))
    """Number of consecutive skipped steps after which `TrainingDiverged` is raised, unless `on_give_up="continue"`.
    None: never."""
    initial_factor: float = field(default=0.1, metadata=number(above=0, at_most=1))
    """Learning rate factor after a rollback to the initial weights, for the rest of the training. Raised to a power at
    each repetition, and up to its cube at once where a step changed the weights by more than their norm. The
    initial weights are the last resort, for training that fails from its first steps; those from before an optimizer
    that took over are restored where it fails from that optimizer's first steps."""

    easing_factor: float = field(default=0.5, metadata=number(above=0, at_most=1))
    """Learning rate factor after a rollback; raised to a power at each repetition."""
    easing_steps: int = field(default=200, metadata=whole_number(1))
    """Number of steps until the learning rate is back at its scheduled value; doubled at each repetition."""
    easing_clip: float | None = field(default=2.0, metadata=number(above=1, optional=True))
    """Clip gradients in these steps at this multiple of their usual norm; None: do not clip."""
    hold_learning_rate_above: float | None = field(default=3.0, metadata=number(above=1, optional=True))
    """Limit the learning rate to that of the restored state where it exceeds this multiple of it, because a jump is
    then the likely cause. Ends when the script's own value is no higher. None: no limit."""
    hold_doubles_in: int = field(default=500, metadata=whole_number(1))
    """Number of steps in which this limit doubles, so that it ends by itself."""
    reset_momentum: bool = field(default=False, metadata=boolean())  # set first moments to zero after a rollback

    reset_at_spike: bool = field(default=False, metadata=boolean())
    """At a loss spike or a gradient explosion, set both moments of Adam and its step count to zero, as SPAM does. A
    cosine warm-up of the learning rate follows. Not in a skipped step, nor while the learning rate is reduced."""
    reset_warm_up: int = field(default=150, metadata=whole_number(1))
    """Number of steps of that warm-up, from a hundredth of the learning rate on."""
    cut_learning_rate: float | None = field(default=None, metadata=number(above=0, below=1, optional=True))
    """Learning rate factor for the rest of the training, from the first broken step on, such as 0.1. None: no cut."""
    act_ahead: ActAhead | None = field(default=None, metadata=one_of("checkpoint", "ease", optional=True))
    """Experimental: what to do at the finding `divergence_ahead`, which this switches on. "checkpoint": write a
    checkpoint now; "ease": also reduce the learning rate as after a rollback. None: nothing."""

    largest_scale: float | None = field(default=None, metadata=number(above=0, optional=True))
    """Highest loss scale of a `GradScaler`, from its third step on. None: no limit."""
    cut_after_skips: int = field(default=5, metadata=whole_number(1))
    """Number of consecutive skipped steps after which the loss scale is lowered."""
    cut_factor: float = field(default=0.1, metadata=number(above=0, at_most=1))  # factor by which it is lowered
    smallest_scale: float = field(default=1.0, metadata=number(above=0))  # lowest loss scale
    search_skips: int = field(default=16, metadata=whole_number(0))
    """Number of consecutive skips that are normal while a loss scaler searches its first scale."""
    rollback_after_skips: int = field(default=25, metadata=whole_number(1))
    """Number of consecutive skipped steps that trigger a rollback."""
    tell_every_skips: int = field(default=100, metadata=whole_number(1))
    """Interval in consecutive skipped steps between repeated warnings."""
    critical_skip_share: float = field(default=0.05, metadata=number(above=0))
    """Share of skipped steps in the last `skip_window` steps above which skipping is critical."""
    skip_window: int = field(default=300, metadata=whole_number(1))  # number of steps over which that share is computed

    def __post_init__(self) -> None:
        """Refuse what does not fit, with what the field takes."""
        check_fields(self)

    @property
    def rolls_back(self) -> bool:
        """Whether divergence is answered at all: by a rollback, or by giving up with an error."""
        return self.max_rollbacks_in_all > 0 and (self.max_rollbacks > 0 or self.on_give_up == "raise")

    @classmethod
    def preset(cls, name: str, **changed: Any) -> RollbackPolicy:
        """The policy of a preset, `research`, `production` or `debugging`, with what you give on top."""
        one_of(*PRESETS)["takes"].check("preset", name)
        check_names("RollbackPolicy.preset()", changed, [option.name for option in fields(cls)])
        return cls(**{**PRESETS[name].policy, **changed})
