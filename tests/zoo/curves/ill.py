"""Draws trainings in which something goes wrong, with what it is, how large and where.

In: a seed, a form of event, and what is wanted to be fixed: size in nats, length as a share, number of points, noise.
Out: a `DrawnRun`. The same arguments give the same run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from zoo.curves.drawn import DrawnRun, Logged, PlacedEvent, Setting
from zoo.curves.noise import noisy, sigma_at
from zoo.curves.settings import Course, course_of, drawn_setting, logged, norms_of, step_of, written

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which something goes wrong."""

    kind: str
    draw: Callable[[np.random.Generator, Course, float, float], tuple[Floats, Floats | None, int, int]]
    """From a course, a size and a length: how far the training curve is lifted, how far the validation curve if that
    differs, and the first and the last point of the event among those of the curve in which it shows."""
    sizes: tuple[float, float] = (0.1, 3.0)
    lengths: tuple[float, float] = (0.0, 0.0)
    """Shares of the run."""
    fewest: int = 8
    most: int = 1_000_000
    """Points of the training loss."""
    in_validation: bool = False
    needs_validation: bool = False
    family: tuple[str, ...] = ()
    lowest_start: float = -math.inf
    """Where the loss starts at least."""


def one_point(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    n = len(course.t)
    at = int(rng.integers(max(2, n // 12), n - max(2, n // 20)))
    course.hold(at, at + 1)
    lift = np.zeros(n)
    lift[at] = size
    return lift, np.zeros(len(course.validation_t)), at, at


def one_point_again_and_again(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """Three points or more, up to a twelfth of all, each by half the size at least."""
    n = len(course.t)
    count = int(rng.integers(3, max(3, n // 12) + 1))
    places = np.sort(rng.choice(np.arange(max(2, n // 12), n - 2), count, replace=False))
    lift = np.zeros(n)
    lift[places] = size * rng.uniform(0.5, 1.0, count)
    lift[rng.choice(places)] = size
    return lift, np.zeros(len(course.validation_t)), int(places[0]), int(places[-1])


def several_points(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """It jumps, and falls back over several points."""
    n = len(course.t)
    count = min(max(2, round(length * n)), max(2, n // 4))
    at = int(rng.integers(max(2, n // 12), max(3, n - count - max(3, n // 12))))
    course.hold(at, at + count)
    lift = np.zeros(n)
    lift[at : at + count] = size * np.linspace(1, 0.25, count)
    return lift, None, at, at + count - 1


def built_up(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """It rises over several points and comes back over several."""
    n = len(course.t)
    count = min(max(3, round(length * n)), max(3, n // 4))
    at = int(rng.integers(max(2, n // 12), max(3, n - count - max(3, n // 12))))
    course.hold(at, at + count)
    lift = np.zeros(n)
    lift[at : at + count] = size * (1 - np.abs(np.linspace(-0.75, 0.75, count)))
    lift[at + count // 2] = size
    return lift, None, at, at + count - 1


def validation_spike(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    n = len(course.validation_t)
    count = min(max(1, round(length * n)), max(1, n // 6))
    at = int(rng.integers(max(2, n // 12), max(3, n - count - 1)))
    course.validation_clean[at : at + count] = course.validation_clean[at - 1]
    lift = np.zeros(n)
    lift[at : at + count] = size
    return np.zeros(len(course.t)), lift, at, at + count - 1


def warm_up_overshoot(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """The first learning rates are too high: up at once, and back within some points."""
    n = len(course.t)
    count = int(min(rng.integers(3, 15), n // 4))
    at = int(rng.integers(1, 3))
    course.hold(at, at + count)
    lift = np.zeros(n)
    lift[at : at + count] = size * np.sin(np.linspace(0.3, 0.9 * np.pi, count))
    return lift, np.zeros(len(course.validation_t)), at, at + count - 1


def lasting_step(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """Up within a few points, and there to the end."""
    n = len(course.t)
    at = min(max(2, round((1 - length) * n)), n - 3)
    ramp = int(rng.integers(1, max(2, n // 50) + 1))
    course.hold(at, n)
    lift = np.zeros(n)
    lift[at:] = size * np.minimum(1, np.arange(1, n - at + 1) / ramp)
    return lift, None, at, n - 1


def slow_rise(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """It rises slowly to the end; nothing more is learnt meanwhile."""
    n = len(course.t)
    at = min(max(2, round((1 - length) * n)), n - 3)
    course.hold(at, n)
    lift = np.zeros(n)
    lift[at:] = size * np.linspace(0, 1, n - at) ** rng.uniform(0.7, 1.5)
    return lift, None, at, n - 1


def last_points(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """The last two to four points of a sparse log go up, in training and validation alike."""
    n = len(course.t)
    count = int(rng.integers(2, 5))
    course.hold(n - count, n)
    lift = np.zeros(n)
    lift[n - count :] = size * np.arange(1, count + 1) / count
    return lift, None, n - count, n - 1


def overfitted(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """The validation loss rises from its best to the end while the training loss goes on falling."""
    v = course.validation_t
    best = min(max(1, round((1 - length) * len(v))), len(v) - 3)
    since = np.clip((v - v[best]) / max(v[-1] - v[best], 1e-9), 0, None)
    floor = course.validation_clean[best]
    course.validation_clean[best:] = floor
    further = np.clip((course.t - v[best]) / max(1 - v[best], 1e-9), 0, None)
    fall = -rng.uniform(0.15, 1.5) * further
    return fall, size * since ** rng.uniform(0.6, 1.2), best, len(v) - 1


def chance_level(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """Nothing is ever learnt: the loss is that of guessing."""
    level = math.log(int(rng.choice([2, 3, 5, 10, 20, 100, 1000]))) if rng.random() < 0.6 else course.setting.start
    course.clean[:] = level
    lift = size * np.exp(-course.t / 0.01)  # the first points may be somewhat higher
    course.validation_clean[:] = level
    return lift, np.zeros(len(course.validation_t)), 0, len(course.t) - 1


def early_collapse(rng: np.random.Generator, course: Course, size: float, length: float):  # type: ignore[no-untyped-def]
    """It falls at once to a level where it stays, far above what such a model learns."""
    begins = 1 - length
    course.clean[:] = course.setting.start * np.exp(-size * (1 - np.exp(-5 * course.t / max(begins, 1e-3))))
    if len(course.validation_t):
        course.validation_clean[:] = np.interp(course.validation_t, course.t, course.clean)
    return np.zeros(len(course.t)), np.zeros(len(course.validation_t)), round(begins * len(course.t)), len(course.t) - 1


FORMS: dict[str, Form] = {
    "spike of one point": Form("loss_spike", one_point),
    "spikes of one point": Form("loss_spike", one_point_again_and_again, fewest=20),
    "spike of several points": Form("loss_spike", several_points, lengths=(0.01, 0.1), fewest=12),
    "spike that builds up": Form("loss_spike", built_up, lengths=(0.02, 0.15), fewest=12),
    "spike in validation only": Form(
        "loss_spike", validation_spike, lengths=(0.0, 0.05), in_validation=True, needs_validation=True
    ),
    "divergence, lasting step": Form("divergence", lasting_step, lengths=(0.05, 0.7)),
    "divergence, slow rise": Form("divergence", slow_rise, lengths=(0.2, 0.8)),
    "divergence, last points": Form("divergence", last_points, most=60),
    "overfitting": Form(
        "overfitting", overfitted, sizes=(0.05, 1.5), lengths=(0.25, 0.85), in_validation=True, needs_validation=True
    ),
    "plateau at chance": Form("plateau", chance_level, sizes=(0.0, 0.02), family=("classification", "language")),
    "plateau after collapse": Form(
        "plateau",
        early_collapse,
        sizes=(0.03, 0.3),
        lengths=(0.8, 0.97),
        family=("classification", "language"),
        lowest_start=2.2,
    ),
}
WARM_UP = Form("loss_spike", warm_up_overshoot, sizes=(0.3, 2.5), fewest=20)
"""Reported as INFO where it comes back, so it is drawn apart."""
NON_FINITE = ("NaN to the end", "inf to the end", "NaN at the last point", "NaN for some points")


def ill_run(form: str, seed: int, *, size: float = 0.0, length: float = 0.0, **fixed: object) -> DrawnRun:
    """One training in which this happens; what is not given is drawn."""
    rng = np.random.default_rng([seed, zlib.crc32(form.encode())])
    if form in NON_FINITE:
        return _non_finite(form, seed, rng, fixed)
    made = WARM_UP if form == "warm-up overshoot" else FORMS[form]
    setting = drawn_setting(rng, **fixed)
    while not _fits(made, setting):
        setting = drawn_setting(rng, **fixed)
    if (made.family and setting.family not in made.family) or setting.start < made.lowest_start:
        classes = int(rng.choice([10, 20, 100, 1000]))
        setting = replace(setting, family="classification", start=math.log(classes), end=0.2 * math.log(classes))
    course = course_of(setting, rng)
    size = size or math.exp(rng.uniform(*np.log(np.maximum(made.sizes, 1e-3))))
    length = length or float(rng.uniform(*made.lengths))
    lift, of_validation, first, last = made.draw(rng, course, size, length)
    course.lift(lift, of_validation)
    metrics = logged(course, rng)
    if setting.with_norms:
        also = lift * (rng.uniform(1, 3) if rng.random() < 0.7 and made.kind != "overfitting" else 0.0)
        metrics = (*metrics, norms_of(course, np.maximum(also, 0), rng))
    shown, clean, t = metrics[0].values, course.clean, course.t
    if made.in_validation:
        shown, clean, t = metrics[1].values, course.validation_clean, course.validation_t
    sigma = sigma_at(shown, clean, max(0, first - 50), last + 50)
    start, end = step_of(setting, float(t[first])), step_of(setting, float(t[last]))
    event = PlacedEvent(made.kind, form, size, sigma, start, end, last - first + 1)
    return DrawnRun(seed, form, setting, metrics, event)


def _fits(form: Form, setting: Setting) -> bool:
    enough = not form.needs_validation or setting.validations >= 6
    return form.fewest <= setting.points <= form.most and enough


def _non_finite(form: str, seed: int, rng: np.random.Generator, fixed: dict[str, object]) -> DrawnRun:
    setting = drawn_setting(rng, **fixed)
    course = course_of(setting, rng)
    values = noisy(course.clean, setting.noise, setting.sigma, rng)
    validation = noisy(course.validation_clean, "multiplicative", setting.validation_sigma, rng)
    n = len(values)
    first = n - 1 if form == "NaN at the last point" else int(rng.integers(2, n - 1))
    last = min(n - 1, first + int(rng.integers(1, max(2, n // 10)))) if form == "NaN for some points" else n - 1
    values[first : last + 1] = math.inf if form.startswith("inf") else math.nan
    if last == n - 1 and form != "NaN at the last point":
        validation[course.validation_t >= course.t[first]] = values[first]
    metrics: tuple[Logged, ...] = written(setting, course.t, values, course.validation_t, validation, rng)
    kind = "inf_detected" if form.startswith("inf") else "nan_detected"
    start, end = step_of(setting, float(course.t[first])), step_of(setting, float(course.t[last]))
    return DrawnRun(
        seed, form, setting, metrics, PlacedEvent(kind, form, math.inf, setting.sigma, start, end, last - first + 1)
    )
