"""Draws healthy trainings: plain ones, and those that look ill at first.

In: a seed and the name of a trap, or none. Out: a `DrawnRun` without an event. The same arguments give the same run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from zoo.curves.drawn import UNKNOWN, DrawnRun, Logged, Setting
from zoo.curves.noise import noisy, unit
from zoo.curves.settings import Course, course_of, drawn_setting, logged, norms_of

Floats = NDArray[np.float64]
PLAIN = "plain"


def bump(t: Floats, at: float, width: float) -> Floats:
    """A smooth rise and fall of height 1."""
    return np.asarray(np.exp(-0.5 * ((t - at) / width) ** 2))


def of(setting: Setting, rng: np.random.Generator, change: Callable[[Course], None]) -> tuple[Logged, ...]:
    course = course_of(setting, rng)
    change(course)
    return logged(course, rng)


def plain(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    course = course_of(setting, rng)
    metrics = logged(course, rng)
    return (*metrics, norms_of(course, np.zeros(setting.points), rng)) if setting.with_norms else metrics


def schedule_drops(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Large drops when the learning rate is cut: what came before a drop is no spike."""
    setting = replace(setting, shape="stepped")
    return of(setting, rng, lambda course: course.lift(np.where(course.t > rng.uniform(0.4, 0.8), -0.5, 0.0)))


def cosine_restarts(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """At each restart of the learning rate the loss rises by some percent, and ends each period lower."""
    cycles, height = int(rng.integers(3, 6)), rng.uniform(0.03, 0.12)

    def change(course: Course) -> None:
        phase = (course.t * cycles) % 1.0
        rise = height * (1 + np.cos(np.pi * phase)) / 2 * (1 - np.exp(-np.floor(course.t * cycles)))
        course.lift(rise)

    return of(replace(setting, sigma=max(setting.sigma, 0.01)), rng, change)


def rewarmed(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """The learning rate is warmed up again: a bump of some percent that passes."""
    at, height = rng.uniform(0.3, 0.7), rng.uniform(0.03, 0.08)
    return of(setting, rng, lambda course: course.lift(height * bump(course.t, at, 0.04)))


def curriculum(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Harder data from some step on: the loss rises a little, and falls again below where it was."""
    at, height = rng.uniform(0.2, 0.5), rng.uniform(0.05, 0.15)

    def change(course: Course) -> None:
        since = np.maximum(course.t - at, 0.0)
        course.lift(np.where(course.t >= at, height * np.exp(-since / 0.08) - 0.5 * since, 0.0))

    return of(replace(setting, shape="exponential"), rng, change)


def slow_fine_tuning(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """A language model fine-tuned slowly, 4.5 to 3.3: no plateau."""
    start = rng.uniform(3.9, 5.0)
    fixed = replace(setting, start=start, end=start * rng.uniform(0.68, 0.78), family="fine_tuning")
    return plain(rng, replace(fixed, shape=str(rng.choice(["power_law", "steady", "annealed"]))))


def small_gain(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """A good model adapted to a new task: from 1.3 to 1.1 in the first tenth, then flat."""
    start = rng.uniform(0.8, 2.0)
    fixed = replace(setting, family="fine_tuning", shape="annealed", start=start, end=start * rng.uniform(0.75, 0.9))
    return plain(rng, fixed)


def small_validation(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Few examples to validate on: 6 to 30 noisy values without a trend at the end."""
    count = int(rng.integers(6, 31))
    fixed = replace(setting, validations=min(count, setting.points), validation_sigma=rng.uniform(0.05, 0.15))
    return plain(rng, replace(fixed, logging="steps" if setting.points > count else setting.logging))


def validation_levels_off(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """The validation loss stops falling, some percent above its best at most, while training goes on."""
    setting = with_validation(setting, rng)

    def change(course: Course) -> None:
        v = course.validation_t
        best = int(0.5 * len(v))
        course.validation_clean[best:] = course.validation_clean[best]
        course.lift(np.zeros(len(course.t)), rng.uniform(0, 0.03) * np.maximum(0, v - v[best]))

    return of(setting, rng, change)


def double_descent(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """The validation loss rises in the middle and ends below its first minimum."""
    setting = with_validation(setting, rng)

    def change(course: Course) -> None:
        v = course.validation_t
        course.lift(np.zeros(len(course.t)), rng.uniform(0.1, 0.5) * bump(v, 0.35, 0.1) - 0.4 * v)

    return of(setting, rng, change)


def grokking(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """The training loss goes to nothing at once; the validation loss stays high, and falls late."""
    setting = with_validation(setting, rng)

    def change(course: Course) -> None:
        start = course.setting.start
        course.clean[:] = start * np.maximum(np.exp(-course.t / 0.05), 1e-3)
        fall = 1 / (1 + np.exp((course.validation_t - rng.uniform(0.6, 0.75)) / 0.04))
        course.validation_clean[:] = start * (0.01 + 1.05 * fall)

    return of(replace(setting, start=abs(setting.start) + 1.0, family="classification"), rng, change)


def to_zero(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """All is learnt: a loss of nearly nothing, with noise larger than itself, or of exactly 0."""

    def change(course: Course) -> None:
        floor = 10 ** rng.uniform(-6, -3)
        course.clean[:] = rng.uniform(0.5, 3) * np.exp(-course.t / rng.uniform(0.04, 0.1)) + floor
        course.clean *= np.exp(rng.uniform(0.3, 0.8) * rng.standard_normal(len(course.t)) * np.minimum(1, course.t * 5))
        if len(course.validation_t):
            course.validation_clean[:] = np.interp(course.validation_t, course.t, course.clean) + 5 * floor

    metrics = of(replace(setting, family="classification", noise="multiplicative", start=1.0, end=0.1), rng, change)
    if rng.random() < 0.4:
        metrics[0].values[metrics[0].values < 1e-3] = 0.0
    return metrics


def epoch_waves(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Within each epoch the same order of batches: waves, or a step down at each new epoch."""
    epochs, depth = int(rng.integers(4, 12)), rng.uniform(0.02, 0.1)

    def change(course: Course) -> None:
        phase = (course.t * epochs) % 1.0
        course.lift(depth * np.sin(2 * np.pi * phase) if rng.random() < 0.5 else depth * phase)

    return of(setting, rng, change)


def late_change(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Augmentation is switched off for the last tenth: the training loss drops at once."""
    return of(setting, rng, lambda course: course.lift(np.where(course.t > 0.9, -0.25, 0.0), 0 * course.validation_t))


def annealed_penalty(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """The weight of a prior is warmed up: the total grows a little by design, then falls."""

    def change(course: Course) -> None:
        course.lift(0.08 * np.clip((course.t - 0.05) / 0.2, 0, 1) - 0.3 * np.clip(course.t - 0.25, 0, 1))

    return of(replace(setting, shape="exponential"), rng, change)


def negative(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """A likelihood or a similarity: below zero for most of the run."""
    start = rng.uniform(-0.5, 1.0)
    return plain(rng, replace(setting, family="likelihood", start=start, end=start - rng.uniform(0.5, 8)))


def reinforcement(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Rewards rise with much noise; the policy's loss has no level, and the value's grows with the returns."""
    t = np.arange(setting.points) / max(1, setting.points - 1)
    gained = 1 / (1 + np.exp(-(t - rng.uniform(0.2, 0.6)) / 0.1))
    rewards = rng.uniform(10, 500) * (gained + rng.uniform(0.1, 0.3) * unit("correlated", len(t), rng))
    policy = -0.01 + 0.02 * unit("heavy_tailed", len(t), rng)
    value = (0.1 + 5 * gained) * np.exp(0.4 * unit("skewed", len(t), rng))
    names = ("rollout/ep_rew_mean", "train/policy_gradient_loss", "train/value_loss", "train/loss")
    return by_steps(setting, zip(names, (rewards, policy, value, value / 2 + policy), strict=True))


def adversarial(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Two players: each loss moves against the other, and neither level means anything."""
    t = np.arange(setting.points) / max(1, setting.points - 1)
    wave = 0.15 * unit("correlated", len(t), rng) + 0.2 * np.sin(2 * np.pi * t * rng.uniform(1, 4))
    judge = (0.7 - 0.25 * t) * np.exp(0.1 * unit("gaussian", len(t), rng) - wave)
    maker = (0.7 + rng.uniform(0.5, 2) * t) * np.exp(0.15 * unit("skewed", len(t), rng) + wave)
    names = rng.choice([("d_loss", "g_loss"), ("Discriminator loss", "Generator loss"), ("loss_D", "loss_G")])
    return by_steps(setting, zip(map(str, names), (judge, maker), strict=True))


def appended(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """Two healthy trainings in one file, the second from the start again."""
    return joined(plain(rng, replace(setting, with_norms=False)), plain(rng, replace(setting, with_norms=False)), 0.0)


def resumed(rng: np.random.Generator, setting: Setting) -> tuple[Logged, ...]:
    """A training that was stopped, and went on from a checkpoint some points earlier."""
    setting = replace(setting, with_norms=False)
    course = course_of(setting, rng)
    cut, back = int(setting.points * rng.uniform(0.4, 0.7)), max(1, setting.points // 20)
    values = noisy(course.clean, setting.noise, setting.sigma, rng)
    again = noisy(course.clean, setting.noise, setting.sigma, rng)
    place = np.arange(setting.points, dtype=np.float64)
    steps = np.concatenate([place[:cut], place[cut - back :]]) * setting.stride
    both = np.concatenate([values[:cut], again[cut - back :]])
    return (Logged("loss", steps, np.full(len(steps), UNKNOWN), both, np.arange(len(steps), dtype=np.float64)),)


def with_validation(setting: Setting, rng: np.random.Generator) -> Setting:
    """The same with 10 validations or more, if there are enough points."""
    count = setting.points if setting.logging == "epochs" else min(setting.points, int(rng.integers(10, 60)))
    return replace(setting, validations=max(setting.validations, count))


def by_steps(setting: Setting, curves: object) -> tuple[Logged, ...]:
    place = np.arange(setting.points, dtype=np.float64)
    none = np.full(setting.points, UNKNOWN)
    return tuple(Logged(name, place * setting.stride, none, values, place) for name, values in curves)  # type: ignore[attr-defined]


def joined(first: tuple[Logged, ...], second: tuple[Logged, ...], since: float) -> tuple[Logged, ...]:
    """One log after the other; the names are those of the first."""
    last = max(float(item.order.max()) for item in first) + 1
    pairs = zip(first, second, strict=True)
    return tuple(
        Logged(
            first.name,
            np.concatenate([first.steps, two.steps + since]),
            np.concatenate([first.epochs, two.epochs + since]),
            np.concatenate([first.values, two.values]),
            np.concatenate([first.order, two.order + last]),
        )
        for first, two in pairs
    )


TRAPS: dict[str, Callable[[np.random.Generator, Setting], tuple[Logged, ...]]] = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        schedule_drops, cosine_restarts, rewarmed, curriculum, slow_fine_tuning, small_gain, small_validation,
        validation_levels_off, double_descent, grokking, to_zero, epoch_waves, late_change, annealed_penalty, negative,
        reinforcement, adversarial, appended, resumed,
    )
}  # fmt: skip
FEWEST = 20
"""Minimum number of points that traps need to have their shape."""


def healthy_run(seed: int, trap: str = PLAIN, **fixed: object) -> DrawnRun:
    """One training in which nothing goes wrong."""
    rng = np.random.default_rng([seed, zlib.crc32(trap.encode())])
    setting = drawn_setting(rng, **fixed)
    while trap != PLAIN and setting.points < FEWEST:
        setting = drawn_setting(rng, **fixed)
    if trap != PLAIN and setting.family == "likelihood" and trap != "negative":
        setting = replace(setting, family="classification", start=math.log(10), end=0.6)
    metrics = (plain if trap == PLAIN else TRAPS[trap])(rng, setting)
    return DrawnRun(seed, trap, setting, metrics)
