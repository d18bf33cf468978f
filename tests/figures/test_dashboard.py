from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from figures.drawings import curve, cut_off, overlapping_labels, pixels, texts

import mlflow_stability
from mlflow_stability.figures.dashboard import MAX_ROWS, dashboard
from mlflow_stability.figures.dashboard_data import DashboardData, Mark
from mlflow_stability.figures.style import BAD, png
from mlflow_stability.kinds.catalog import KINDS
from mlflow_stability.vocabulary.result import Severity

NORMS = "grad_norm", "grad_norm_clipped"


def board_of_steps(count: int) -> DashboardData:
    dice, steps = np.random.default_rng(0), np.arange(1, count + 1)
    curves = (
        curve("loss", 4 * np.exp(-5 * steps / count) + dice.normal(2, 0.05, count)),
        curve("val_loss", [4.0, 2.5], [1, count]),
        curve("grad_norm", dice.lognormal(0, 0.3, count)),
        curve("learning_rate", 1e-3 * np.minimum(1, steps / count * 10)),
        curve("update_ratio", dice.lognormal(-7, 0.3, count)),
    )
    return DashboardData("Training health", f"run 3f2a9c · steps 1 to {count:,} · finished", curves)


def colour(name: str) -> list[int]:
    return [round(value * 255) for value in matplotlib.colors.to_rgb(name)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 50, 5000, 1_000_000])
def test_any_number_of_steps_is_legible(count: int) -> None:
    figure = dashboard(board_of_steps(count))
    assert cut_off(figure) == []
    assert overlapping_labels(figure) == []
    assert "not measured" not in texts(figure)


def test_a_picture_is_readable_at_a_thousand_pixels_and_is_a_png() -> None:
    figure = dashboard(board_of_steps(50))
    assert figure.get_size_inches()[0] * figure.dpi == 1500
    assert png(figure).startswith(b"\x89PNG")
    smallest = min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text))
    assert smallest * figure.dpi / 72 * 1000 / 1500 >= 12  # pixels


def test_panels_without_measurements_say_not_measured() -> None:
    figure = dashboard(DashboardData("Training health", "", (curve("loss", [1.0, 2.0]),)))
    assert texts(figure).count("not measured") == 3


@pytest.mark.parametrize("first", range(0, len(KINDS), MAX_ROWS))
def test_the_name_of_every_kind_of_finding_is_whole(first: int) -> None:
    marks = tuple(Mark(kind, Severity.INFO, 1, 2) for kind in sorted(KINDS)[first : first + MAX_ROWS])
    assert cut_off(dashboard(DashboardData("Training health", "", (curve("loss", [2.0, 1.0]),), marks))) == []


def test_a_run_without_data_is_drawn_too() -> None:
    figure = dashboard(DashboardData("Training health", "no steps yet", ()))
    assert texts(figure).count("not measured") == 4
    assert "no findings" in texts(figure)


@pytest.mark.slow
def test_values_that_are_not_finite_are_marked_and_counted() -> None:
    loss = np.ones(3000)
    loss[1000:1800], loss[2900] = np.nan, np.inf
    figure = dashboard(DashboardData("Training health", "", (curve("loss", loss),)))
    assert {"× 800 not finite", "× 1 not finite"} <= set(texts(figure))
    assert cut_off(figure) == []
    bare = dashboard(DashboardData("Training health", "", (curve("loss", np.ones(3000)),)))
    bad = colour(BAD)
    assert (pixels(figure) == bad).all(axis=-1).sum() > 500
    assert not (pixels(bare) == bad).all(axis=-1).any()


def test_a_spike_of_one_step_in_a_million_reaches_its_height() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[400_000] = 2000.0
    loss_axes = dashboard(DashboardData("Training health", "", (curve("loss", loss),))).axes[1]
    highest = max(np.nanmax(line.get_ydata()) for line in loss_axes.lines if len(line.get_ydata()))
    assert highest == 2000.0
    assert all(len(line.get_xdata()) < 5000 for line in loss_axes.lines)


def test_lines_are_interrupted_where_the_training_was_rolled_back() -> None:
    loss, attempts = np.linspace(3, 2, 90), np.repeat([0, 1, 2], 30)
    marks = tuple(Mark("rollback", Severity.INFO, at, at, target=at - 10) for at in (30, 60))
    figure = dashboard(DashboardData("Training health", "", (curve("loss", loss, attempts=attempts),), marks))
    line = max(figure.axes[1].lines, key=lambda item: len(item.get_xdata()))
    gaps = np.flatnonzero(np.isnan(line.get_ydata()))
    assert [int(line.get_xdata()[gap]) for gap in gaps] == [31, 61]
    assert "rollback" in texts(figure)
    assert "2 ×" in texts(figure)


def test_skipped_steps_are_shown_where_they_were_counted() -> None:
    skipped = np.cumsum(np.isin(np.arange(200), [50, 51, 120]))
    figure = dashboard(
        DashboardData("Training health", "", (curve("loss", np.ones(200)), curve("skipped_steps", skipped)))
    )
    assert {"step skipped", "3 ×"} <= set(texts(figure))


def test_zones_are_named_where_the_curve_is() -> None:
    def named(values: list[float]) -> set[str]:
        return {text.split("\n")[0] for text in texts(dashboard(DashboardData("", "", (curve("grad_norm", values),))))}

    assert {"healthy", "danger"} <= named([1.0, 5000.0])
    assert "vanishing" not in named([1.0, 5000.0])
    assert "vanishing" in named([1e-9, 1e-3])
    assert {"good", "high"} <= {
        text.split("\n")[0] for text in texts(dashboard(DashboardData("", "", (curve("update_ratio", [1e-3, 0.9]),))))
    }


@pytest.mark.parametrize("lowest", [1e-5, 1e-9, 1e-14, 1e-40])
def test_the_names_of_zones_are_whole_however_narrow_their_bands(lowest: float) -> None:
    figure = dashboard(DashboardData("", "", (curve("update_ratio", np.geomspace(1.0, lowest, 50)),)))
    assert cut_off(figure) == []


def test_more_kinds_than_there_are_rows_share_the_last_one() -> None:
    marks = tuple(Mark(f"kind_{number}", Severity.INFO, number, number) for number in range(20))
    worst = Mark("nan_detected", Severity.CRITICAL, 30, 30)
    figure = dashboard(DashboardData("", "", (curve("loss", np.ones(40)),), (*marks, worst)))
    assert {"nan detected", "16 other types"} <= set(texts(figure))
    assert overlapping_labels(figure) == []


def test_two_validation_losses_are_distinguished_by_their_names() -> None:
    def named(*places: str) -> list[str]:
        losses = [curve("val_loss", [2.0, 1.0], place=place) for place in places]
        figure = dashboard(DashboardData("", "", (curve("loss", [1.0, 2.0]), *losses)))
        assert cut_off(figure) == []
        return [text.get_text() for text in figure.axes[1].get_legend().get_texts()]  # type: ignore[union-attr]

    assert named("", "mask") == ["loss", "val_loss", "val_loss mask"]
    assert named("boxes", "mask") == ["loss", "val_loss boxes", "val_loss mask"]
    alike = named(*(f"{number}_of_all_the_words_in_the_book" for number in "abcd"))
    assert len(set(alike)) == 5


def test_the_halves_of_a_gan_have_names_of_their_own() -> None:
    norms = [curve(quantity, [1.0, 2.0], place=place) for quantity in NORMS for place in ("", "track_1")]
    axes = dashboard(DashboardData("", "", tuple(norms))).axes[2]
    names = [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
    assert names[:2] == ["grad_norm", "track_1"]
    assert len(set(names)) == 4


def test_the_learning_rate_is_drawn_as_it_is() -> None:
    rate = np.full(1000, 0.1)
    rate[500] = 0.9
    figure = dashboard(DashboardData("", "", (curve("learning_rate", rate), curve("loss", rate))))
    loss, _, learning_rate, _ = figure.axes[1:]
    drawn = [line for line in learning_rate.lines if len(line.get_xdata()) == 1000]
    assert [np.array_equal(line.get_ydata(), rate) for line in drawn] == [True]
    assert sum(len(line.get_xdata()) == 1000 for line in loss.lines) == 2


def test_names_that_mean_something_to_matplotlib_are_shown_as_they_are() -> None:
    groups = tuple(curve("learning_rate", [0.1, 0.2], place=f"$\\frac{{{number}}}$_训练") for number in range(9))
    figure = dashboard(DashboardData("$x^{$ 训练 \x1b[31m", "_a_ " * 300, groups, left_out={"learning_rate": 2}))
    assert any("$x^{$ □□ \\x1b[31m" in text for text in texts(figure))
    assert "and 6 more" in texts(figure)
    assert cut_off(figure) == []


def settings() -> dict[str, object]:
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if not name.startswith("backend")}


def test_settings_of_the_user_neither_show_nor_change() -> None:
    before = pixels(dashboard(board_of_steps(20)))
    theirs = {"font.size": 30.0, "axes.facecolor": "black", "text.usetex": True, "lines.linewidth": 9.0}
    with matplotlib.rc_context(theirs):
        changed = settings()
        assert np.array_equal(before, pixels(dashboard(board_of_steps(20))))
        assert settings() == changed


@pytest.mark.slow
def test_pyplot_is_never_loaded_and_what_is_followed_live_loads_no_matplotlib_at_all() -> None:
    code = (
        "import sys, mlflow_stability.courier.sinks.figure_sink, mlflow_stability.courier.sinks.file_sinks\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from mlflow_stability.figures.dashboard import dashboard\n"
        "from mlflow_stability.figures.dashboard_data import DashboardData\n"
        "dashboard(DashboardData('', '', ()))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    root = str(Path(mlflow_stability.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})
