"""The outlets of one recording, together."""

from __future__ import annotations

from collections.abc import Callable

from mlflow_stability.alerts.message import RunLink
from mlflow_stability.alerts.metrics import OTEL
from mlflow_stability.courier.outlets.alert_outlet import AlertOutlet
from mlflow_stability.courier.outlets.metrics_outlet import MetricsOutlet
from mlflow_stability.courier.outlets.mirror_outlet import MirrorOutlet
from mlflow_stability.courier.outlets.outlet import Outlet, OutletPlan
from mlflow_stability.courier.process.training_process import TrainingState
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.journal.layout import ALERTS, mirror_page
from mlflow_stability.vocabulary.run import Opening


class Outlets:
    """All of them, each on its own: one that fails holds no other up."""

    def __init__(self, plan: OutletPlan, delivered: Delivered, opening: Opening) -> None:
        self.sinks: list[Outlet] = []
        """Those that were asked for, to be fed with the journal."""
        begun = not plan.settings.is_left_behind or (delivered.folder / ALERTS).exists()
        if plan.settings.channels and begun:
            self.sinks.append(AlertOutlet(plan, delivered, opening))
        exports = any(each.tool == OTEL for each in plan.settings.mirrors)
        if (plan.prometheus is not None or exports) and not plan.settings.is_left_behind:
            self.sinks.append(MetricsOutlet(plan, delivered))
        for mirror in plan.settings.mirrors:
            begun = not plan.settings.is_left_behind or mirror_page(delivered.folder, mirror.key).exists()
            if mirror.tool != OTEL and begun:
                self.sinks.append(MirrorOutlet(plan, mirror, delivered, opening))

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return all(each.done for each in self.sinks)

    @property
    def awaited(self) -> bool:
        """Whether the end of the training should wait a little."""
        return any(each.awaited and not each.done for each in self.sinks)

    def link(self, found: Callable[[], RunLink]) -> None:
        """The run is known; `found` asks the tracking server what it is called and where it is."""
        waiting = [each for each in self.sinks if isinstance(each, AlertOutlet | MirrorOutlet) and each.link is None]
        if waiting:
            run = found()
            for each in waiting:
                each.link = run

    def flush(self, state: TrainingState) -> bool:
        """What is due of each; False if there was nothing to do."""
        moved = False
        for each in self.sinks:
            moved |= each.flush(state)
        return moved
