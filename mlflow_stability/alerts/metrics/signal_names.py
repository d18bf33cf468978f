"""The one table of signals in other tools: which signal has which name where.

TensorBoard and Weights & Biases use the keys of MLflow, which `tracking/keys.py` makes; Prometheus and OpenTelemetry
have names of their own. A signal that is not in the table is not exported to them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SignalNames:
    """One signal of a whole model, in every outlet."""

    quantity: str
    """Its name in the record."""
    prometheus: str
    meaning: str
    unit: str = "1"
    """As OpenTelemetry writes units; ``1`` for plain numbers."""
    counter: bool = False
    """Whether it only grows: the value of a counter is the last one that was measured."""

    @property
    def otel(self) -> str:
        """The name in OpenTelemetry: ``llm.training.loss``."""
        name = self.prometheus.removesuffix("_total")
        for group in ("llm_training", "llm_validation", "llm_gradient", "llm_gpu", "llm"):
            if name.startswith(f"{group}_"):
                return f"{group.replace('_', '.')}.{name.removeprefix(f'{group}_')}"
        return name


SIGNALS = (
    SignalNames("loss", "llm_training_loss", "Loss of the last step"),
    SignalNames("val_loss", "llm_validation_loss", "Validation loss that the script logged last"),
    SignalNames("loss_ema", "llm_training_loss_ema", "Smoothed loss"),
    SignalNames("loss_zscore", "llm_training_loss_zscore", "Standard deviations of the loss from its mean"),
    SignalNames("loss_trend", "llm_training_loss_trend", "Slope of the loss per step"),
    SignalNames("grad_norm", "llm_gradient_norm", "L2 norm of all gradients, before clipping"),
    SignalNames("grad_norm_clipped", "llm_gradient_norm_clipped", "L2 norm of all gradients, after clipping"),
    SignalNames("grad_max", "llm_gradient_max", "Largest gradient"),
    SignalNames("grad_variance", "llm_gradient_variance", "Variance of the gradient norm over 100 steps"),
    SignalNames("clip_fraction", "llm_gradient_clip_fraction", "Share of the last 100 steps that were clipped"),
    SignalNames("learning_rate", "llm_learning_rate", "Learning rate of the first parameter group"),
    SignalNames("param_norm", "llm_parameter_norm", "L2 norm of the weights"),
    SignalNames("param_max", "llm_parameter_max", "Largest weight"),
    SignalNames("update_norm", "llm_update_norm", "L2 norm of what a step changed"),
    SignalNames("update_ratio", "llm_update_ratio", "Update norm over the norm of the weights"),
    SignalNames("grad_param_ratio", "llm_gradient_parameter_ratio", "Gradient norm over the norm of the weights"),
    SignalNames(
        "lr_ratio", "llm_learning_rate_ratio", "Learning rate times gradient norm over the norm of the weights"
    ),
    SignalNames("adam_rms", "llm_adam_rms", "Root mean square of gradient over its remembered size"),
    SignalNames("momentum_norm", "llm_momentum_norm", "L2 norm of the optimizer's momentum"),
    SignalNames("loss_scale", "llm_loss_scale", "Scale of the GradScaler"),
    SignalNames("skipped_steps", "llm_skipped_steps_total", "Steps that were skipped", "{step}", counter=True),
    SignalNames("rollbacks", "llm_rollbacks_total", "Rollbacks", "{rollback}", counter=True),
    SignalNames("micro_batches", "llm_micro_batches", "Backward passes of the last step"),
    SignalNames("tokens_per_second", "llm_tokens_per_second", "Tokens per second", "{token}/s"),
    SignalNames("samples_per_second", "llm_samples_per_second", "Samples per second", "{sample}/s"),
    SignalNames("tokens_processed", "llm_tokens_processed_total", "Tokens trained on", "{token}", counter=True),
    SignalNames("tflops", "llm_model_tflops", "Model TFLOPs per second", "TFLOP/s"),
    SignalNames("mfu", "llm_model_flops_utilization", "Share of the device's peak FLOPs, 0 to 1"),
    SignalNames("memory_allocated", "llm_gpu_memory_bytes", "Device memory in use", "By"),
    SignalNames("memory_reserved", "llm_gpu_memory_reserved_bytes", "Device memory reserved by the allocator", "By"),
    SignalNames("memory_peak", "llm_gpu_memory_peak_bytes", "Largest device memory in use", "By"),
    SignalNames("memory_share", "llm_gpu_memory_share", "Share of the device's memory in use at the peak"),
    SignalNames("host_memory", "llm_host_memory_bytes", "Host memory of the training process", "By"),
    SignalNames("data_time", "llm_data_seconds", "Time of a step that waited for data", "s"),
    SignalNames("forward_time", "llm_forward_seconds", "Time of a step in forward passes", "s"),
    SignalNames("backward_time", "llm_backward_seconds", "Time of a step in backward passes", "s"),
    SignalNames("optimizer_time", "llm_optimizer_seconds", "Time of a step in the optimizer", "s"),
    SignalNames("own_time", "llm_recording_seconds", "Time of a step in mlflow-stability", "s"),
    SignalNames("overhead_fraction", "llm_recording_overhead_fraction", "Share of the time that recording takes"),
    SignalNames("progress", "llm_training_progress", "Share of the training that is done, 0 to 1"),
    SignalNames("eta_seconds", "llm_training_remaining_seconds", "Estimated time until the end", "s"),
    SignalNames("collapsed_heads", "llm_collapsed_attention_heads", "Share of attention heads with collapsed entropy"),
)
"""Every signal of a whole model that is exported."""
STEPS = SignalNames("", "llm_training_steps_total", "Recorded steps", "{step}", counter=True)
LOSS_SPIKES = SignalNames("", "llm_loss_spikes_total", "Loss spikes", "{event}", counter=True)
GRADIENT_SPIKES = SignalNames("", "llm_gradient_spikes_total", "Exploding gradients", "{event}", counter=True)
EVENTS = SignalNames("", "llm_training_events_total", "Events, by type and severity", "{event}", counter=True)
STEP_DURATION = SignalNames("step_time", "llm_step_duration_seconds", "Time from one step to the next", "s")
"""What is counted or gathered, and has no value in a reading; `STEP_DURATION` is a histogram."""
EVERYTHING = (*SIGNALS, STEPS, LOSS_SPIKES, GRADIENT_SPIKES, EVENTS, STEP_DURATION)
BY_QUANTITY = {each.quantity: each for each in SIGNALS}
KNOWN_QUANTITIES = frozenset(BY_QUANTITY) | {
    STEP_DURATION.quantity,
    "param_large",
    "param_small",
    "param_nonfinite_count",
    "grad_zeros",
    "activation_dead",
    "activation_nonfinite",
    "activation_rms",
    "attention_entropy",
    "attention_max_logit",
    "effective_rank",
    "mean_cosine",
    "router_dropped",
    "router_load_entropy",
    "router_max_logit",
    "router_max_share",
    "sdr_unique_ratio",
    "sdr_bit_usage",
    "stable_rank",
}
"""What conditions can compare."""
