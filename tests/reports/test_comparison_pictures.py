from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.cards import card_of_loss, diverging, made
from diagnosis.histories import falling
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH, axis_of
from mlflow_stability.reports.html_kit.comparison_pictures import dots_of, overlay_of, strips_of, survival_picture_of
from mlflow_stability.vocabulary.result import ParamPlot, SurvivalCurve

POINT = re.compile(r"(-?[\d.]+) (-?[\d.]+)")


def points(path: str) -> np.ndarray:
    return np.array([[float(value) for value in point] for point in POINT.findall(path)])


def test_losses_are_aligned_at_the_onset() -> None:
    cards = [card_of_loss(diverging(onset=at), f"at-{at}") for at in (200, 350)]
    overlay = overlay_of(cards)
    assert overlay is not None
    assert overlay.zero is not None
    for line in overlay.lines:
        across, down = points(line.path).T
        turn = across[np.argmax(down)]  # the lowest loss is the lowest point
        assert turn == pytest.approx(overlay.zero * WIDTH / 100, abs=0.1 * WIDTH)


def test_a_higher_loss_and_its_tick_are_drawn_higher() -> None:
    overlay = overlay_of([card_of_loss(falling(300, first=40.0), "a"), card_of_loss(falling(300, first=40.0), "b")])
    assert overlay is not None
    down = points(overlay.lines[0].path)[:, 1]
    assert down[0] < 0.3 * HEIGHT < 0.7 * HEIGHT < down[-1]
    ticks = sorted(overlay.values, key=lambda tick: float(tick.label))
    assert [item.at for item in ticks] == sorted((item.at for item in ticks), reverse=True)


def test_all_of_a_run_is_drawn_however_early_its_onset() -> None:
    overlay = overlay_of([card_of_loss(diverging(onset=30), "early"), card_of_loss(falling(600), "well")])
    assert overlay is not None
    assert overlay.zero is not None
    assert overlay.zero < 20
    for line in overlay.lines:
        across = points(line.path)[:, 0]
        assert (across[0], across[-1]) == pytest.approx((0, WIDTH), abs=0.01 * WIDTH)


def test_one_curve_is_no_overlay() -> None:
    assert overlay_of([card_of_loss(falling(300)), made("b", {})]) is None


def test_of_many_runs_the_ends_are_drawn() -> None:
    card = card_of_loss(falling(50))
    overlay = overlay_of([replace(card, name=str(number)) for number in range(60)])
    assert overlay is not None
    assert (len(overlay.lines), overlay.left_out) == (24, 36)


def test_stairs_begin_at_all_and_end_at_what_is_left() -> None:
    survival_picture = survival_picture_of([SurvivalCurve("all runs", 4, 2, (100, 200), (0.75, 0.5), (), (), 400)])
    assert survival_picture is not None
    corners = points(survival_picture.curves[0].path)
    assert corners[0].tolist() == [0.0, 0.0]
    assert corners[-1].tolist() == [WIDTH, HEIGHT / 2]
    assert survival_picture_of([SurvivalCurve("all runs", 4, 0)]) is None


def test_a_strip_shows_the_length_of_a_run_and_the_times_of_its_problems() -> None:
    strips = strips_of([made("well", {}), made("lost", {}, lost=500), made("short", {}, last=500)])
    assert strips is not None
    well, lost, short = strips.strips
    assert (well.bars, short.width) == ((), 50.0)
    assert (lost.bars[0].left, lost.bars[0].width, lost.bars[0].severity) == (50.0, 50.0, "critical")


def test_a_lost_run_is_drawn_on_the_upper_edge() -> None:
    plot = ParamPlot("lr", (0.1, 1.0, 10.0), (), (False, False, True), (2.0, 3.0, float("inf")))
    stable, _, lost = dots_of(plot).dots
    assert lost.top < 5 < stable.top
    assert lost.unstable
    assert dots_of(plot).logarithmic


@given(st.lists(st.floats(), max_size=20))
@example([5.7e305, -1.79e308])
def test_an_axis_places_every_number_within(values: list[float]) -> None:
    axis = axis_of(values)
    places = axis.places([value for value in values if np.isfinite(value)])
    assert ((places >= 0) & (places <= 100)).all()
    assert all(0 <= tick.at <= 100 for tick in axis.ticks())


def test_a_loss_that_explodes_leaves_room_for_the_others() -> None:
    far = falling(600, seed=1) * np.exp(np.maximum(0, np.arange(600) - 300) / 5.0)  # up to 1e26
    overlay = overlay_of([card_of_loss(falling(600), "well"), card_of_loss(far, "far")])
    assert overlay is not None
    well, gone = (points(line.path)[:, 1] for line in overlay.lines)
    assert well.max() - well.min() > 0.2 * HEIGHT
    assert gone.min() == 0
    assert overlay.cut


def test_a_loss_that_leaves_its_place_by_little_is_shown_whole() -> None:
    overlay = overlay_of([card_of_loss(falling(600), "well"), card_of_loss(diverging(seed=1), "up")])
    assert overlay is not None
    assert not overlay.cut


@pytest.mark.parametrize("count", [1, 2, 4, 10])
def test_words_beneath_a_picture_do_not_run_into_each_other(count: int) -> None:
    labels = tuple(f"float32[{number}28, 32, a longer word]" for number in range(count))
    plot = ParamPlot("batch", tuple(map(float, range(count))), labels, (False,) * count, (2.0,) * count)
    ticks = dots_of(plot).across
    assert sum(len(tick.label) + 1 for tick in ticks) <= 36
    assert ticks[0].label.startswith("float"[:4])


def test_runs_aligned_by_the_onset_of_others_are_marked_as_such() -> None:
    wild, calm = card_of_loss(diverging(onset=200), "wild"), card_of_loss(falling(600), "calm")
    for cards, borrowed in (([wild, calm], True), ([wild, wild], False), ([calm, calm], False)):
        overlay = overlay_of(cards)
        assert overlay is not None
        assert overlay.borrowed is borrowed


@pytest.mark.slow
def test_a_loss_that_reached_zero_does_not_stop_the_picture_of_many() -> None:
    cards = [card_of_loss(falling(600, first=400.0, seed=seed), str(seed)) for seed in range(12)]
    for last in (0.0, 1e9):
        losses = falling(600, first=400.0)
        losses[-1] = last
        cards.append(card_of_loss(losses, f"ended at {last}"))
    overlay = overlay_of(cards)
    assert overlay is not None
    assert overlay.logarithmic
    assert not any("nan" in line.path or "inf" in line.path for line in overlay.lines)
