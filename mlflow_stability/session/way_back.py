"""Goes back, all processes of a training or none of them.

In: the order to go back, which every process carries out after the same step. Out: the training as it was, an event
that says so, and another attempt in the curves. Promised: processes agree before anything is changed and again after
it, each votes whatever became of it here; where one cannot, all are left at, or put back to, the state that they had,
and nobody goes back any more. Where one cannot even be put back, that is said.
"""

from __future__ import annotations

from collections.abc import Callable

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.recovery.decisions import Decision
from mlflow_stability.recovery.training_parts import TrainingParts
from mlflow_stability.session.crew import Crew
from mlflow_stability.session.hands import Hands
from mlflow_stability.session.recording import Recording
from mlflow_stability.session.rescue import Rescue
from mlflow_stability.vocabulary.event import Event

PART = "rollback"


class WayBack:
    """The way back of one training."""

    def __init__(
        self, rescue: Rescue, crew: Crew, hands: Hands, recording: Recording | None, tell: Callable[[Event], None]
    ) -> None:
        guard = hands.guard
        self._rescue = rescue
        self._crew = crew
        self._off = guard.off
        self._recording = recording
        self._tell = tell
        self._settle = hands.settle
        self.is_under_way = False
        """What is decided meanwhile is void."""
        self._prepare = guard(PART, self._prepared)
        self._apply = guard(PART, self._applied)
        self._undo = guard("undoing a rollback", rescue.undo)
        self._finish = guard(PART, self._went)
        self._forgo = guard("decisions", self._forgone)

    def go(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        """Go back; False where nothing came of it. `parts`: None where they are gone, which is no reason not to vote.

        Raises `TrainingDiverged` where that is what the user wants when we can do no more.
        """
        self.is_under_way = True
        try:
            if not self._crew.agree(bool(self._prepare(decision, step, parts))):
                self._forgo(decision, step, True)
            elif not self._crew.agree(bool(self._apply())):
                self._forgo(decision, step, self._crew.agree(bool(self._undo())))
            else:
                self._finish(decision, step)
                return True
            return False
        finally:
            self.is_under_way = False

    def _prepared(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        if parts is None:
            raise LookupError("the model or the optimizer is gone")
        self._settle()
        self._rescue.prepare(decision, step, parts)
        return True

    def _applied(self) -> bool:
        self._rescue.apply()
        return True

    def _went(self, decision: Decision, step: int) -> None:
        recording = self._recording
        event = self._rescue.went_back(decision, step, 1 if recording is None else recording.attempt + 1)
        self._crew.forget()
        if recording is not None:
            self._tell(event)
            recording.set_back(decision.reason)

    def _forgone(self, decision: Decision, step: int, all_whole: bool) -> None:
        why = self._off.get(PART, "another process of this training could not")
        self._tell(self._rescue.forgo(decision, step, why, all_whole))
        self._crew.forget()
        if self._rescue.ends_training:
            raise TrainingDiverged(f"Training was ended at step {step}: it could not be set back ({why}).")
