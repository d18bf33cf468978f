"""Libraries with optimizers of their own: Keras on torch, with `fit` and with a loop of its own, and fastai."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from trainers.frameworks.raw import model_of
from trainers.frameworks.torchvision_operators import declare_operators
from trainers.script import NAN_AT, SEED, STEPS, Script, Trainer, norm_of


def keras(script: Script) -> None:
    """Validated after each of three epochs."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    script.autolog()
    keras.utils.set_random_seed(SEED)

    class Model(keras.Sequential):  # type: ignore[misc]
        def compute_loss(self, *args: Any, training: bool = True, **more: Any) -> Tensor:
            loss: Tensor = super().compute_loss(*args, training=training, **more)
            if training:
                self.noted = loss.item()
            return loss

    model = Model(
        [
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.build((8, 6))

    class Noting(keras.optimizers.AdamW):  # type: ignore[misc]
        def apply(self, gradients: Any, variables: Any = None) -> None:
            script.step(parameters, model.noted, norm_of(parameters))
            super().apply(gradients, variables)

    parameters = [variable.value for variable in model.trainable_variables]
    rate = keras.optimizers.schedules.CosineDecay(0.01, STEPS)
    model.compile(Noting(rate, clipnorm=1.0), "mse")
    inputs = np.random.default_rng(0).standard_normal((STEPS * 8, 6)).astype(np.float32)
    if script.nan(NAN_AT):
        inputs[NAN_AT * 8 : (NAN_AT + 1) * 8] = np.nan
    targets = np.ones((STEPS * 8, 1), np.float32)
    for part in range(3):  # an epoch each: the batches of `fit` begin again
        here = slice(part * STEPS * 8 // 3, (part + 1) * STEPS * 8 // 3)
        validation = (np.ones((8, 6), np.float32), np.ones((8, 1), np.float32))
        fitted = model.fit(
            inputs[here],
            targets[here],
            batch_size=8,
            shuffle=False,
            validation_data=validation,
            verbose=0,
        )
        script.validated(*fitted.history["val_loss"])
    script.end(parameters + [variable.value for variable in model.non_trainable_variables])


def keras_loop(script: Script) -> None:
    """A loop by hand over a model and an optimizer of Keras."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    script.autolog()
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    model.build((8, 6))
    optimizer = keras.optimizers.Adam(0.01)
    variables = model.trainable_variables
    parameters = [variable.value for variable in variables]
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(script.batch(torch.randn(8, 6), step)), torch.ones(8, 1))
        model.zero_grad()
        loss.backward()
        script.step(parameters, loss, norm_of(parameters))
        with torch.no_grad():
            optimizer.apply([parameter.grad for parameter in parameters], variables)
    script.end(parameters)


def fastai(script: Script) -> None:
    declare_operators()
    from fastai.callback.core import Callback
    from fastai.callback.schedule import Learner  # with fit_one_cycle
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader

    script.autolog()

    class Noting(Callback):  # type: ignore[misc]
        def before_step(self) -> None:
            script.step(self.learn.model, self.learn.loss_grad, norm_of(self.learn.model.parameters()))

    inputs = torch.randn(STEPS * 8, 6)
    if script.nan(NAN_AT):
        inputs[NAN_AT * 8 : (NAN_AT + 1) * 8] = float("nan")

    def pair(at: int) -> tuple[Tensor, Tensor]:
        return inputs[at], torch.ones(1)

    loaders = DataLoaders(
        *(DataLoader([pair(at) for at in range(count)], bs=8, num_workers=0) for count in (STEPS * 8, 8))
    )
    learner = Learner(loaders, model_of(), loss_func=nn.functional.mse_loss, cbs=[Noting()])
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(1, 0.01)
    script.validated(learner.recorder.values[-1][1])
    script.end(learner.model)


FASTAI = ("fastcore", "fasttransform", "fastprogress", "fastdownload", "plum-dispatch<2.10", "cloudpickle", "pillow")
TRAINERS = [
    Trainer("Keras", keras, packages=("keras",), shown=("keras",)),
    Trainer("Keras, own loop", keras_loop, packages=("keras",), shown=("keras",)),
    # fastai asks for spacy, which a training of tensors does without.
    Trainer("fastai", fastai, packages=FASTAI, alone=("fastai", "torchvision"), shown=("fastai",)),
]
