"""Draws what a training is like, and writes down curves as its log would.

In: a generator of random numbers, and what is wanted to be fixed. Out: a `Setting`, its curves without noise, and
`Logged` metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from zoo.curves.drawn import UNKNOWN, Logged, Setting
from zoo.curves.noise import NOISES, noisy
from zoo.curves.shapes import FAMILIES, FAMILY_ODDS, SHAPES, falling, levels

Floats = NDArray[np.float64]
COUNTS = (8, 10, 12, 15, 20, 30, 40, 60, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 30_000, 100_000)
COUNT_ODDS = (2, 2, 2, 2, 4, 4, 4, 4, 6, 4, 4, 4, 5, 5, 3, 2, 1, 0.3, 0.1)
"""How often real logs have about this number of points."""
STRIDES = (1, 5, 10, 20, 50, 100, 250, 500, 1000)
NAMES = (("train_loss", "val_loss"), ("loss", "val_loss"), ("train/loss", "eval/loss"), ("loss", "eval_loss"))


def drawn_setting(rng: np.random.Generator, **fixed: object) -> Setting:
    """A setting as likely as such trainings are; ``fixed``: fields that are given."""
    odds = np.array(COUNT_ODDS) / sum(COUNT_ODDS)
    points = int(fixed.get("points") or rng.choice(COUNTS, p=odds))  # type: ignore[call-overload]
    short = points <= 300
    logging = str(fixed.get("logging") or rng.choice(["epochs", "steps", "both"] if short else ["steps", "both"]))
    family = str(fixed.get("family") or rng.choice(FAMILIES, p=FAMILY_ODDS))
    start, end = levels(family, rng)
    smooth = logging == "epochs"
    sigma = math.exp(rng.uniform(math.log(0.002), math.log(0.08 if smooth else 0.25)))
    if logging == "epochs":
        validations = points if rng.random() < 0.8 else 0
    else:
        most = min(1000, max(6, points // 2))
        validations = int(math.exp(rng.uniform(math.log(6), math.log(most + 1)))) if rng.random() < 0.5 else 0
    noise = str(fixed.get("noise") or rng.choice(NOISES))
    if noise == "correlated":
        sigma *= 0.4  # what wanders further is no noise to any reader
    drawn = Setting(
        points=points,
        logging=logging,
        stride=1 if logging == "epochs" else int(rng.choice(STRIDES)),
        family=family,
        shape=str(rng.choice(list(SHAPES))),
        start=start,
        end=end,
        noise=noise,
        sigma=sigma,
        validations=validations,
        validation_sigma=math.exp(rng.uniform(math.log(0.003), math.log(0.06))),
        gap=rng.uniform(0.0, 0.25),
        with_norms=not smooth and rng.random() < 0.3,
    )
    return replace(drawn, **fixed)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class Course:
    """A training without noise: what events are put into."""

    setting: Setting
    t: Floats
    """The time of each training point, from 0 to 1."""
    clean: Floats
    validation_t: Floats
    validation_clean: Floats

    def hold(self, low: int, high: int) -> None:
        """Keep both curves at the level before a stretch, so that an event's size is measured from there."""
        level = self.clean[low - 1]
        end = self.t[high] if high < len(self.t) else math.inf
        within = (self.validation_t >= self.t[low]) & (self.validation_t < end)
        self.clean[low:high] = level
        if len(self.validation_t) and within.any():
            first = int(np.argmax(within))
            self.validation_clean[within] = self.validation_clean[max(0, first - 1)]

    def lift(self, lift: Floats, validation_lift: Floats | None = None) -> None:
        """Raise the curves by this number of nats at each point."""
        self.clean = raised(self.clean, lift)
        if len(self.validation_t):
            given = np.interp(self.validation_t, self.t, lift) if validation_lift is None else validation_lift
            self.validation_clean = raised(self.validation_clean, given)


def raised(clean: Floats, lift: Floats) -> Floats:
    """The curve this number of nats higher; where it has no logarithm, by this multiple of what was learnt."""
    if not len(clean) or clean.min() > 0:
        return np.asarray(clean * np.exp(lift))
    return np.asarray(clean + lift * max(float(np.ptp(clean)), 1e-6))


def course_of(setting: Setting, rng: np.random.Generator) -> Course:
    """How the training goes when all goes well."""
    t = np.arange(setting.points) / max(1, setting.points - 1)
    clean = falling(t, setting.shape, setting.start, setting.end, rng)
    if setting.validations:
        places = np.round(np.linspace(0, 1, setting.validations + 1)[1:] * (setting.points - 1)).astype(int)
        if setting.logging == "epochs" and setting.validations == setting.points:
            places = np.arange(setting.points)
        return Course(setting, t, clean, t[places], raised(clean[places], np.full(len(places), setting.gap)))
    return Course(setting, t, clean, np.empty(0), np.empty(0))


def step_of(setting: Setting, t: float) -> int:
    """The step that a log's reader names at this time."""
    return round(t * (setting.points - 1)) * setting.stride


def logged(course: Course, rng: np.random.Generator) -> tuple[Logged, ...]:
    """The metrics of this course with noise, as a log has them."""
    setting = course.setting
    values = noisy(course.clean, setting.noise, setting.sigma, rng)
    kind = setting.noise if setting.noise == "quantised" else "multiplicative"
    validation = noisy(course.validation_clean, kind, setting.validation_sigma, rng)
    return written(setting, course.t, values, course.validation_t, validation, rng)


def written(
    setting: Setting, t: Floats, values: Floats, validation_t: Floats, validation: Floats, rng: np.random.Generator
) -> tuple[Logged, ...]:
    """The metrics with the steps and epochs of this way of logging."""
    names = NAMES[int(rng.integers(len(NAMES)))] if len(validation) else ("loss", "")
    place, validation_place = (np.round(value * (setting.points - 1)) for value in (t, validation_t))
    none, validation_none = np.full(len(t), UNKNOWN), np.full(len(validation_t), UNKNOWN)
    if setting.logging == "epochs":
        loggeds = [Logged(names[0], none, place, values, place)]
        if len(validation):
            loggeds.append(Logged(names[1], validation_none, validation_place, validation, validation_place))
        return tuple(loggeds)
    epochs = none
    validation_epochs = validation_none
    if setting.logging == "both":
        per_epoch = max(1.0, setting.points / max(6, len(validation)))
        epochs = np.floor(place / per_epoch)
        validation_epochs = np.floor(validation_place / per_epoch)
    loggeds = [Logged(names[0], place * setting.stride, epochs, values, place)]
    if len(validation):
        loggeds.append(
            Logged(names[1], validation_place * setting.stride, validation_epochs, validation, validation_place + 0.5)
        )
    return tuple(loggeds)


def norms_of(course: Course, lift: Floats, rng: np.random.Generator) -> Logged:
    """Gradient norms beside the loss, raised by this number of nats at each point."""
    setting = course.setting
    values = np.exp(rng.uniform(-2, 1) + 0.3 * rng.standard_normal(setting.points) + lift)
    place = np.arange(setting.points, dtype=np.float64)
    return Logged("grad_norm", place * setting.stride, np.full(setting.points, UNKNOWN), values, place)
