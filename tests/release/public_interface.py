"""A script of a user with strict types: every public name, every argument and every field of a result.

`test_public_interface.py` has mypy check it against the package as it is installed, and finds what it does not use.
As a program it imports every public name and makes every detector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from mlflow_stability import (
    Action,
    Alert,
    AlertMessage,
    AttentionMap,
    Comparison,
    Diagnosis,
    Finding,
    ModelCheck,
    ModelFinding,
    Options,
    Remedy,
    RollbackPolicy,
    Severity,
    Simulation,
    Source,
    SPAMAdam,
    Span,
    TrainingDiverged,
    Where,
    attach,
    attention_entropy_plot,
    attention_heatmap,
    autolog,
    check,
    compare,
    compare_attention,
    compare_layers,
    conservative_grad_scaler,
    current_session,
    dashboard,
    diagnose,
    diagnose_all,
    flush,
    judge,
    kinds,
    load_run,
    parameter_histograms,
    restore,
    simulate,
)
from mlflow_stability.errors import (
    ChangingPartsError,
    CheckpointsRefused,
    JournalError,
    RestoreRefused,
    RunNotFoundError,
    SettingsError,
    StabilityError,
    TorchLacksError,
    TrackingError,
    UnreadableLogError,
)

DETECTORS = (
    *(kinds.ActivationNonfinite(), kinds.AdamRmsHigh(), kinds.AttentionCollapse(), kinds.AttentionLogitGrowth()),
    *(kinds.DeadExpert(), kinds.DeadLayer(), kinds.DeadUnits(), kinds.Divergence(smallest_rise=3)),
    *(kinds.DivergenceAhead(), kinds.DivergenceAtStart(), kinds.DivergenceClassic(divergence_threshold=1.5)),
    *(kinds.EpsilonLarge(), kinds.EqualWeights(), kinds.GradientExplosion(), kinds.GradientExplosionClassic()),
    *(kinds.GradientImbalance(), kinds.GradientUnderflow(), kinds.GradientVanishing()),
    *(kinds.GradientVanishingLayers(), kinds.InfDetected(), kinds.InputScale(), kinds.LabelRange()),
    *(kinds.LayerExplosion(), kinds.LearningRateJump(), kinds.LearningRateOutOfRange(), kinds.LearningRateRise()),
    *(kinds.LearningRateZero(), kinds.LossScaleCollapse(), kinds.LossSpike(threshold=10), kinds.LossSpikeClassic()),
    *(kinds.LowGpuUtilization(), kinds.LowMfu(), kinds.MemoryPressure(), kinds.NanDetected(), kinds.OneClass()),
    *(kinds.Oscillation(), kinds.Overfitting(), kinds.Plateau(), kinds.RepeatedData()),
    *(kinds.RepresentationCollapse(), kinds.RouterCollapse()),
    *(kinds.SameBatch(), kinds.SameInput(), kinds.SameOutput()),
    kinds.SaturatedActivation(),
    *(kinds.SdrBitUsage(), kinds.SdrCollapse(), kinds.SdrLowDiversity(), kinds.SdrTemperature()),
    *(kinds.SlowProgress(), kinds.StepSkipped(), kinds.StepTimeIncrease(), kinds.TargetsIgnored()),
    *(kinds.PaddingInLoss(), kinds.TargetSum()),
    *(kinds.TargetsInInput(), kinds.TargetsInView(), kinds.TargetsUnreachable(), kinds.ThroughputDrop()),
    *(kinds.UntiedWeights(), kinds.UpdateRatioHigh()),
    *(kinds.UpdateRatioLow(), kinds.UpdatesLost(), kinds.WeightImbalance(), kinds.WeightSpike()),
)


def policy() -> RollbackPolicy:
    assert RollbackPolicy.preset("production", max_checkpoints=3).rolls_back
    return RollbackPolicy(
        skip_gradients_above=100.0,
        snapshot_every=100,
        snapshots=3,
        snapshot_budget=2**30,
        snapshot_share=0.01,
        rollback_checkpoint_interval=500,
        max_checkpoints=10,
        best_by="val_loss",
        best_mode="min",
        extra_state={"sampler": object()},
        healthy_after=50,
        rollback_at=Severity.WARNING,
        rollback_on=("divergence", "gradient_explosion"),
        divergence_threshold=2,
        consecutive_divergence_steps=3,
        onset_lag=16,
        rewind=40,
        rollback_target="newest",
        restore_schedule=False,
        restore_rng=False,
        recovery_patience=10,
        same_trouble_within=1000,
        max_rollbacks=3,
        forgiven_after=2000,
        max_rollbacks_in_all=20,
        on_give_up="raise",
        raise_after_skips=100,
        initial_factor=0.1,
        easing_factor=0.5,
        easing_steps=200,
        easing_clip=2.0,
        hold_learning_rate_above=3.0,
        hold_doubles_in=500,
        reset_momentum=False,
        reset_at_spike=False,
        reset_warm_up=150,
        cut_learning_rate=0.1,
        act_ahead="checkpoint",
        largest_scale=2.0**14,
        cut_after_skips=5,
        cut_factor=0.1,
        smallest_scale=1.0,
        search_skips=16,
        rollback_after_skips=25,
        tell_every_skips=100,
        critical_skip_share=0.05,
        skip_window=300,
    )


def options() -> Options:
    return Options(
        journal_dir=Path("journal"),
        exit_wait=60,
        system_metrics=True,
        tokens_per_step=4096,
        total_steps=10_000,
        total_tokens=None,
        memory_budget=2**28,
        attention_max_seq_len=64,
        sdr_check_interval=100,
        capture_batch="upload",
        adaptive_clip=True,
    )


def receive(message: AlertMessage) -> None:
    print(message.kind, message.severity.name, message.count, message.first_step, message.last_step)
    print(message.message, message.remedies, message.time, message.evidence or {}, message.title, message.what)
    print(message.text(now=message.time), message.key, AlertMessage.from_plain(message.plain()))
    if message.run is not None:
        print(message.run.run_id, message.run.name, message.run.url)


def alerts() -> Iterator[Alert]:
    yield Alert("slack://TokenA/TokenB/TokenC", severity="critical", cooldown=60)
    yield Alert("console", severity=Severity.INFO, rules=["divergence", "grad_norm>100"])
    yield Alert(receive, rules="divergence")
    yield Alert("console", when=lambda signals: signals["mfu"] < 0.3, message="MFU {mfu:.2f}")
    for finding in (Alert("console"),):
        print(
            finding.to,
            finding.severity,
            finding.rules,
            finding.cooldown,
            finding.when,
            finding.message,
            finding.service,
        )
        print(finding.in_training)


def training(model: nn.Module, sampler: Mapping[str, object]) -> None:
    autolog()
    autolog(rollback=True, guard="late", preset="production", stop_on="nonfinite", alerts="console")
    autolog(
        rollback=policy(),
        guard=True,
        stop_on=["nonfinite", "loss>50"],
        preset=None,
        detectors=["default", "loss_spike:classic", kinds.LossSpike(threshold=10)],
        sensitivity="high",
        loss="adversarial",
        log_every_n_steps=10,
        layers_every_n_steps=100,
        layer_metrics="parameters",
        attention_every_n_steps=500,
        representations=["encoder"],
        alerts=["console", receive, *alerts()],
        mirrors=["tensorboard:runs", "wandb:project"],
        prometheus_port=9464,
        offline=False,
        extra_tags={"team": "speech"},
        exclusive=False,
        disable=False,
        silent=False,
        strict=False,
        options=options(),
    )
    optimizer = SPAMAdam(
        model.parameters(),
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        threshold=5000.0,
        reset_every=500,
        warm_up=150,
        clip="coordinate",
        norm_threshold=5.0,
        norm_decay=0.99,
        foreach=None,
        maximize=False,
    )
    scaler = conservative_grad_scaler(
        device="cpu", init_scale=1024.0, growth_factor=1.5, backoff_factor=0.5, growth_interval=200, enabled=True
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    try:
        resumed = restore(
            model,
            optimizer,
            schedulers=[scheduler],
            scaler=scaler,
            run_id="0f3a",
            directory=Path("checkpoints"),
            which="best",
            fetch=lambda run_id, which: Path(run_id, str(which)),
            extra_state=sampler,
        )
        print(resumed.step, resumed.loss, resumed.folder, resumed.messages)
    except (CheckpointsRefused, RestoreRefused) as refused:
        print(refused)
    restore([model], None, which=200)
    try:
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        scaler.step(optimizer)
        optimizer.step()
    except TrainingDiverged as diverged:
        print(diverged.reason)
    session = current_session()
    if session is not None:
        print(session.step, session.run_id, session.parts_off, session.good_steps)
        print(session.checkpoint_now(), session.rollback(), session.wait(60))
        session.skip_next()
    with attach(model, optimizer, silent=True) as attached:
        attached.step(torch.ones(()), gradients={"weight": torch.ones(2)}, learning_rate=0.1)
    print(flush(seconds=5), options().given)


def remedy_shown(remedy: Remedy) -> None:
    print(remedy.action is Action.LOWER_LEARNING_RATE, remedy.target, remedy.factor, remedy.baseline, remedy.step)
    print(remedy.unit, remedy.module, remedy.path, remedy.text, remedy.conditional, remedy.alternative, str(remedy))
    print(remedy.topic, remedy.exactness, remedy.change, remedy.sentence, remedy.as_json()["action"])
    print(remedy.action.sentence)


def finding_shown(finding: Finding) -> None:
    span: Span = finding.span
    where: Where = finding.where
    print(finding.kind, finding.severity >= Severity.WARNING, finding.source is Source.DETECTOR, finding.score)
    print(span.start, span.peak, span.end, span.recovered, where.place, where.metric, where.attempt)
    print(finding.start, finding.peak, finding.end, finding.recovered, finding.place, finding.metric, finding.attempt)
    print(finding.step, finding.message, finding.metrics.get("sigmas", 0.0), finding.stated, finding.time)
    print(finding.count, finding.statements, finding.also, finding.spikes, finding.repeats, finding.experimental)
    print(finding.unit, finding.line, finding.cause, finding.facts.kind, finding.facts.as_json()["kind"])
    print(finding.facts.sentence(finding.step), finding.facts_as(type(finding.facts)), finding.shifted(100))
    print(finding.with_span(end=7), Finding.at(finding.facts, 7, Severity.INFO))
    for remedy in finding.remedies:
        remedy_shown(remedy)


def diagnosis_shown(diagnosis: Diagnosis) -> None:
    print(diagnosis.source, diagnosis.name, diagnosis.format, diagnosis.basis, diagnosis.outcome, diagnosis.verdict)
    print(diagnosis.ended, diagnosis.steps or (0, 0), diagnosis.points, diagnosis.unit, diagnosis.asked_kinds)
    print(diagnosis.early_stopping_step, diagnosis.severity.name, diagnosis.notes, diagnosis.judged.losses)
    for finding in diagnosis.findings:
        finding_shown(finding)
    for remedy in diagnosis.remedies:
        remedy_shown(remedy)
    if (cause := diagnosis.cause) is not None:
        print(cause.name, cause.statement, cause.evidence, cause.ruled_out, cause.not_checked, cause.certainty)
        print(cause.place, cause.kind, cause.step, cause.since, cause.remedies, cause.certain)
    for curve in diagnosis.curves:
        print(curve.metric, curve.first_step, curve.last_step, curve.first_level, curve.last_level, curve.trend)
    for sketch in diagnosis.sketches:
        print(sketch.metric, sketch.steps, sketch.low, sketch.high)
    for gap in diagnosis.cannot_tell:
        print(gap.sentence, gap.kinds)


def reading() -> None:
    try:
        diagnosis_shown(diagnose())
    except (RunNotFoundError, TrackingError, UnreadableLogError, SettingsError, JournalError, TorchLacksError) as error:
        print(isinstance(error, StabilityError), isinstance(error, ChangingPartsError))
    diagnose(
        Path("mlruns/0/run"),
        tracking_uri="sqlite:///mlflow.db",
        loss="train/loss",
        val_loss="val/loss",
        detectors=["divergence", kinds.LossSpike(threshold=10)],
        sensitivity="high",
    )
    for result in diagnose_all(["0f3a", Path("mlruns")], "sqlite:///mlflow.db", loss="loss", val_loss=None):
        if isinstance(result, Diagnosis):
            diagnosis_shown(result)
        else:
            print(result.source, result.message)
    diagnosis_shown(
        judge(
            [2.0, 1.5, 1.2],
            grad_norms=[1.0, 1.1, 1.0],
            learning_rates=torch.full((3,), 1e-3).tolist(),
            val_losses=[1.4],
            steps=range(3),
            detectors=["loss_spike"],
            sensitivity="normal",
            name="losses",
        )
    )
    frame = load_run("0f3a", tracking_uri="sqlite:///mlflow.db", layout="layers")
    print(frame[["step", "loss"]].tail())
    dashboard("0f3a", "sqlite:///mlflow.db").savefig("run.png")
    compare_layers("0f3a", Path("run"), quantity="grad_norm", tracking_uri=None).savefig("layers.png")


def compared() -> Comparison:
    comparison = compare(
        ["0f3a", Path("run")],
        experiment=None,
        filter="params.lr = '0.1'",
        max_runs=10,
        baseline="0f3a",
        tracking_uri=None,
        loss="loss",
        val_loss="val_loss",
        detectors=["divergence"],
        sensitivity="low",
        dask=None,
        remember=False,
        progress=lambda done, total, failed: print(done, total, failed),
    )
    print(comparison.summary, comparison.severity.name, comparison.notes, comparison.asked, comparison.interrupted)
    for run in comparison.runs:
        print(run.card.name, run.card.state, run.card.final_loss, run.spike_rate)
    for card in (*comparison.cards, *comparison.unread):
        print(card.source, card.error, card.params.get("lr"), card.verdict)
    for difference in comparison.differences:
        print(difference.name, difference.values, difference.is_tag)
    if (first := comparison.first_difference) is not None:
        print(first.sentence, first.differs_at)
    if (gate := comparison.gate) is not None:
        print(gate.baseline, [verdict.passed for verdict in gate.verdicts])
    if (cohort := comparison.cohort) is not None:
        print([association.statement for association in cohort.associations], cohort.sensitivity)
    print([layer.quantity for layer in comparison.layers])
    return comparison


def attention(map_: AttentionMap, weights: torch.Tensor) -> None:
    print(map_.step, map_.attempt, map_.layer, map_.layer_number, map_.heads, map_.kind, map_.causal, map_.tokens)
    print(map_.weights.mean(), map_.average.mean(), map_.entropy.max(), map_.max_logit.max())
    print(map_.all_heads, map_.shape)
    attention_heatmap(map_, step=10, layer="encoder", tracking_uri=None, title="Layer 3", save_path="heatmap.png")
    attention_entropy_plot({0: weights}, tracking_uri=None, title="Entropy", save_path=Path("entropy.png"))
    compare_attention(
        *(weights, weights),
        step=None,
        layer=0,
        tracking_uri=None,
        title="Both",
        title_a="before",
        title_b="after",
        save_path="both.png",
    ).savefig("attention.png", dpi=300)


def model_checked(model: nn.Module) -> ModelCheck:
    checked = check(
        model,
        (torch.ones(2, 4), torch.ones(2, 1)),
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.AdamW(model.parameters()),
    )
    print(checked.model, checked.parameters, checked.trainable, checked.loss, checked.chance, checked.grad_norm)
    print(checked.gradient_flow, checked.not_checked, checked.severity.name, checked.verdict)
    for layer in checked.layers:
        print(layer.name, layer.shape, layer.dtype, layer.trainable, layer.rms, layer.grad_norm)
    for activation in checked.activations:
        print(activation.name, activation.mean, activation.std, activation.zero_share)
    result: tuple[ModelFinding, ...] = checked.findings
    for finding in result:
        print(
            finding.check,
            finding.kind,
            finding.severity.name,
            finding.message,
            finding.place,
            finding.evidence,
            finding.remedies,
        )
    parameter_histograms(model, "0", of="gradient", save_path="weights.png").savefig("gradients.png")
    return checked


def simulated() -> Simulation:
    made = simulate("bad-batch", seed=1, rollback=True, steps=200)
    print(made.name, made.what, made.causes, made.cause, made.found, made.run_id, made.healthy_run_id)
    print(min(made.losses), min(made.healthy_losses), made.diagnosis.verdict, made.comparison.summary)
    return made


if __name__ == "__main__":
    print(f"every public name can be imported; {len(DETECTORS)} detectors")
