"""A flight recorder and autopilot for PyTorch training, living in MLflow.

    import mlflow_stability
    mlflow_stability.autolog()

Names are loaded when they are first used, so that reading a run back never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_stability.alerts.alert import Alert
    from mlflow_stability.alerts.message import AlertMessage
    from mlflow_stability.analysis.attention import attention_entropy_plot, attention_heatmap, compare_attention
    from mlflow_stability.analysis.compare import compare
    from mlflow_stability.analysis.diagnose import diagnose, diagnose_all, judge
    from mlflow_stability.analysis.load import load_run
    from mlflow_stability.analysis.pictures import compare_layers, dashboard, parameter_histograms
    from mlflow_stability.demo.simulate import Simulation, simulate
    from mlflow_stability.errors import TrainingDiverged
    from mlflow_stability.probes.model_check.check import check
    from mlflow_stability.recovery.checkpoints.resume import restore
    from mlflow_stability.recovery.skipping.loss_scale import conservative_grad_scaler
    from mlflow_stability.recovery.spam_adam import SPAMAdam
    from mlflow_stability.session.autolog import attach, autolog, current_session, flush
    from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
    from mlflow_stability.vocabulary.result import (
        Action,
        Comparison,
        Diagnosis,
        Finding,
        ModelCheck,
        ModelFinding,
        Remedy,
        Severity,
        Source,
        Span,
        Where,
    )
    from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
    from mlflow_stability.vocabulary.settings import Options

__version__ = "1.0.0"
__all__ = [
    "Action",
    "Alert",
    "AlertMessage",
    "AttentionMap",
    "Comparison",
    "Diagnosis",
    "Finding",
    "ModelCheck",
    "ModelFinding",
    "Options",
    "Remedy",
    "RollbackPolicy",
    "SPAMAdam",
    "Severity",
    "Simulation",
    "Source",
    "Span",
    "TrainingDiverged",
    "Where",
    "attach",
    "attention_entropy_plot",
    "attention_heatmap",
    "autolog",
    "check",
    "compare",
    "compare_attention",
    "compare_layers",
    "conservative_grad_scaler",
    "current_session",
    "dashboard",
    "diagnose",
    "diagnose_all",
    "flush",
    "judge",
    "load_run",
    "parameter_histograms",
    "restore",
    "simulate",
]

PUBLIC = {
    "Action": "mlflow_stability.vocabulary.result.action",
    "Alert": "mlflow_stability.alerts.alert",
    "AlertMessage": "mlflow_stability.alerts.message",
    "AttentionMap": "mlflow_stability.vocabulary.measured.layer_arrays",
    "Comparison": "mlflow_stability.vocabulary.result.comparison",
    "Diagnosis": "mlflow_stability.vocabulary.result.diagnosis",
    "Finding": "mlflow_stability.vocabulary.result.finding",
    "ModelCheck": "mlflow_stability.vocabulary.result.model_check",
    "ModelFinding": "mlflow_stability.vocabulary.result.model_check",
    "Options": "mlflow_stability.vocabulary.settings",
    "Remedy": "mlflow_stability.vocabulary.result.remedy",
    "RollbackPolicy": "mlflow_stability.vocabulary.rollback_policy",
    "SPAMAdam": "mlflow_stability.recovery.spam_adam",
    "Severity": "mlflow_stability.vocabulary.result.finding",
    "Simulation": "mlflow_stability.demo.simulate",
    "Source": "mlflow_stability.vocabulary.result.finding",
    "Span": "mlflow_stability.vocabulary.result.finding",
    "TrainingDiverged": "mlflow_stability.errors",
    "Where": "mlflow_stability.vocabulary.result.finding",
    "attach": "mlflow_stability.session.autolog",
    "attention_entropy_plot": "mlflow_stability.analysis.attention",
    "attention_heatmap": "mlflow_stability.analysis.attention",
    "autolog": "mlflow_stability.session.autolog",
    "check": "mlflow_stability.probes.model_check.check",
    "compare": "mlflow_stability.analysis.compare",
    "compare_attention": "mlflow_stability.analysis.attention",
    "compare_layers": "mlflow_stability.analysis.pictures",
    "conservative_grad_scaler": "mlflow_stability.recovery.skipping.loss_scale",
    "current_session": "mlflow_stability.session.autolog",
    "dashboard": "mlflow_stability.analysis.pictures",
    "diagnose": "mlflow_stability.analysis.diagnose",
    "diagnose_all": "mlflow_stability.analysis.diagnose",
    "flush": "mlflow_stability.session.autolog",
    "judge": "mlflow_stability.analysis.diagnose",
    "load_run": "mlflow_stability.analysis.load",
    "parameter_histograms": "mlflow_stability.analysis.pictures",
    "restore": "mlflow_stability.recovery.checkpoints.resume",
    "simulate": "mlflow_stability.demo.simulate",
}
"""The public names, and the modules that hold them."""


def __getattr__(name: str) -> Any:
    """Load a public name from its room."""
    home = PUBLIC.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from mlflow_stability.errors import TORCH_IS_MISSING

        raise ModuleNotFoundError(f"mlflow_stability.{name} {TORCH_IS_MISSING}", name="torch") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
