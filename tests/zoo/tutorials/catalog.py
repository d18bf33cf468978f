"""Every training of this folder, with the score that a healthy one reaches on each of three seeds."""

from __future__ import annotations

from zoo.tutorials import contrastive, generative, language, on_policy, procedures, replay, vision
from zoo.tutorials.tutorial import Tutorial

TUTORIALS = (
    Tutorial(replay.dqn, at_least=120),
    Tutorial(replay.double_dqn, at_least=120),
    Tutorial(replay.soft_actor_critic, at_least=0.65),
    Tutorial(replay.td3, at_least=0.75),
    Tutorial(on_policy.reinforce, at_least=90),
    Tutorial(on_policy.actor_critic, at_least=90),
    Tutorial(on_policy.ppo, at_least=120),
    Tutorial(contrastive.simclr, at_least=0.93),
    Tutorial(contrastive.siamese_triplets, at_least=0.93),
    Tutorial(contrastive.moco, at_least=0.93),
    Tutorial(contrastive.byol, at_least=0.93),
    Tutorial(contrastive.dino, at_least=0.93),
    Tutorial(contrastive.ema_teacher, at_least=0.93),
    Tutorial(language.seq2seq_noam, at_least=0.95),
    Tutorial(language.word_language_model, at_most=2.3),
    Tutorial(language.memorising_lstm, at_most=0.003),
    Tutorial(language.names_rnn, at_least=0.85),
    Tutorial(language.length_curriculum, at_most=0.005),
    Tutorial(language.preferences, at_least=0.75),
    Tutorial(vision.mnist, at_least=0.95),
    Tutorial(vision.transfer_learning, at_least=0.9),
    Tutorial(vision.detection, at_least=0.97),
    Tutorial(vision.style_transfer_lbfgs, at_most=0.1),
    Tutorial(vision.style_transfer_adam, at_most=0.02),
    Tutorial(vision.pruning, at_least=0.95),
    Tutorial(vision.quantization_aware, at_least=0.95),
    Tutorial(vision.mixed_precision, at_least=0.95),
    Tutorial(vision.ema_evaluation, at_least=0.95),
    Tutorial(generative.dcgan, at_most=0.5),
    Tutorial(generative.wgan_gp, at_most=0.5),
    Tutorial(generative.vae_warm_up, at_most=0.02),
    Tutorial(generative.vq_vae, at_most=0.3),
    Tutorial(generative.ddpm, at_most=0.65),
    Tutorial(procedures.lbfgs_sines, at_most=0.005),
    Tutorial(procedures.lbfgs_regression, at_most=0.05),
    Tutorial(procedures.layer_by_layer, at_least=0.95),
    Tutorial(procedures.maml, at_most=0.4),
    Tutorial(procedures.reptile, at_most=0.35),
    Tutorial(procedures.heat_equation, at_most=0.03),
    Tutorial(procedures.graph_convolution, at_least=0.95),
    Tutorial(procedures.uneven_accumulation, at_least=0.95),
    Tutorial(procedures.polynomial, at_most=0.03),
    Tutorial(procedures.swa, at_least=0.95),
)


def tutorial_named(name: str) -> Tutorial:
    return next(tutorial for tutorial in TUTORIALS if tutorial.name == name)
