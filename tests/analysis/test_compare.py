from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import psutil
import pytest
from analysis.logs import diverging, falling, write_log
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from architecture.test_loading import loaded_by
from forked.processes import DELIVERY, python
from golden.sweep import write_sweep
from mlflow import MlflowClient
from servers.troubled_server import TroubledServer

import mlflow_stability
from mlflow_stability.analysis import cards as cards_module
from mlflow_stability.analysis.cards import cache_folder
from mlflow_stability.analysis.compare import compare
from mlflow_stability.errors import RunNotFoundError, SettingsError, TrackingError
from mlflow_stability.kinds.catalog import default_detectors, detectors_named
from mlflow_stability.tracking import client as store_client

NO_RUN = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def folder() -> Path:
    result = cache_folder()
    assert result is not None
    return result


def kept() -> list[Path]:
    return sorted(folder().glob("*.json"))


@pytest.mark.slow
def test_runs_of_a_store_and_logs_are_compared_together(sqlite_uri: str) -> None:
    write_log(Path("bad.jsonl"), diverging())
    run_id = store_run(sqlite_uri, falling(), lr=0.1)
    comparison = compare([run_id, "bad.jsonl"], tracking_uri=sqlite_uri)
    assert [card.source for card in comparison.cards] == [run_id, "bad.jsonl"]
    assert [card.outcome for card in comparison.cards] == ["healthy", "diverged"]
    assert comparison.first_difference is not None
    assert comparison.first_difference.parts_at == pytest.approx(300, abs=40)
    assert comparison.first_difference.gap is not None


def test_an_experiment_is_searched_by_name_and_by_mlflows_filters(sqlite_uri: str) -> None:
    experiment = MlflowClient(tracking_uri=sqlite_uri).create_experiment("sweep")
    for number in range(3):
        store_run(sqlite_uri, falling(number), experiment=experiment, lr=number)
    store_run(sqlite_uri, falling(), lr=9)
    assert len(compare(experiment="sweep", tracking_uri=sqlite_uri).runs) == 3
    (card,) = compare(experiment=experiment, filter="params.lr = '1'", tracking_uri=sqlite_uri).cards
    assert card.params["lr"] == "1"


@pytest.mark.slow
def test_the_newest_of_many_runs_are_compared_and_a_note_mentions_the_older_ones(sqlite_uri: str) -> None:
    experiment = MlflowClient(tracking_uri=sqlite_uri).create_experiment("sweep")
    made = [store_run(sqlite_uri, falling(number), experiment=experiment, lr=number) for number in range(1, 5)]
    comparison = compare(experiment="sweep", max_runs=2, tracking_uri=sqlite_uri)
    assert {card.source for card in comparison.cards} == set(made[2:])
    assert comparison.notes[0].startswith(
        "Older runs of experiment 'sweep': the newest 2 were compared. Raise --max-runs"
    )
    assert not any("Older" in note for note in compare(experiment="sweep", max_runs=4, tracking_uri=sqlite_uri).notes)
    with pytest.raises(SettingsError, match="at least 1; got 0"):
        compare(experiment="sweep", max_runs=0, tracking_uri=sqlite_uri)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"experiment": "no such"}, "Available: Default"),
        ({"experiment": "Default", "filter": "nonsense ="}, "[Ii]nvalid"),
        ({"experiment": "Default"}, "No runs to compare"),
        ({"filter": "params.lr = '1'"}, "give its name or id"),
        ({}, "No runs to compare"),
    ],
)
def test_an_invalid_search_raises_an_error_that_explains_it(
    sqlite_uri: str, asked: dict[str, str], expected: str
) -> None:
    with pytest.raises((RunNotFoundError, SettingsError, mlflow_stability.errors.TrackingError), match=expected):
        compare(tracking_uri=sqlite_uri, **asked)  # type: ignore[arg-type]


def test_the_error_for_a_deleted_experiment_says_that_it_was_deleted(sqlite_uri: str) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    client.delete_experiment(client.create_experiment("old"))
    with pytest.raises(RunNotFoundError, match="was deleted"):
        compare(experiment="old", tracking_uri=sqlite_uri)


def test_a_run_that_cannot_be_read_is_reported_and_the_others_go_on(sqlite_uri: str) -> None:
    comparison = compare([store_run(sqlite_uri, falling()), NO_RUN, "gone.csv"], tracking_uri=sqlite_uri)
    assert len(comparison.runs) == 1
    assert [card.source for card in comparison.unread] == [NO_RUN, "gone.csv"]
    assert all(card.error for card in comparison.unread)


def test_files_of_a_store_that_a_pattern_finds_beside_its_runs_are_passed_over(tmp_path: Path) -> None:
    runs = write_sweep(tmp_path / "mlruns" / "0")[:2]
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("experiment_id: '0'\nname: Default\n")
    for folder in ("0/tags", "0/datasets", "models/classifier"):
        (tmp_path / "mlruns" / folder).mkdir(parents=True)
    others = [str(tmp_path / "mlruns" / part) for part in ("0/meta.yaml", "0/tags", "0/datasets", "models")]
    comparison = compare([*others, *runs], remember=False)
    assert sorted(card.source for card in comparison.cards) == sorted(runs)
    assert comparison.unread == ()
    with pytest.raises(RunNotFoundError):
        compare([others[0]], remember=False)


def test_a_finished_run_is_cached_until_it_changes(sqlite_uri: str) -> None:
    run_id = store_run(sqlite_uri, falling(), lr=1)
    first = compare([run_id], tracking_uri=sqlite_uri)
    (file,) = kept()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text(file.read_text().replace('"healthy"', '"stuck"'))
    assert compare([run_id], tracking_uri=sqlite_uri).cards[0].outcome == "stuck"  # it was not read again
    MlflowClient(tracking_uri=sqlite_uri).set_tag(run_id, "note", "looked at")
    assert compare([run_id], tracking_uri=sqlite_uri).cards[0].outcome == "healthy"
    assert first.cards[0].outcome == "healthy"


def test_a_damaged_entry_and_other_detectors_are_a_miss(sqlite_uri: str) -> None:
    run_id = store_run(sqlite_uri, diverging())
    compare([run_id], tracking_uri=sqlite_uri)
    (file,) = kept()
    file.write_text("{torn")
    assert compare([run_id], tracking_uri=sqlite_uri).cards[0].outcome == "diverged"
    assert compare([run_id], tracking_uri=sqlite_uri, detectors=detectors_named(["nan_detected"])).runs
    assert len(kept()) == 2


def test_other_rules_of_the_same_version_are_a_miss(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store_run(sqlite_uri, diverging())
    compare([run_id], tracking_uri=sqlite_uri)
    (file,) = kept()
    file.write_text(file.read_text().replace('"diverged"', '"stuck"'))
    assert compare([run_id], tracking_uri=sqlite_uri).cards[0].outcome == "stuck"  # remembered
    monkeypatch.setattr(cards_module, "rules_here", lambda: "others")
    assert compare([run_id], tracking_uri=sqlite_uri).cards[0].outcome == "diverged"
    assert len(kept()) == 2


def test_the_usual_detectors_named_as_such_are_the_usual_ones(sqlite_uri: str) -> None:
    run_id = store_run(sqlite_uri, falling())
    compare([run_id], tracking_uri=sqlite_uri)
    compare([run_id], tracking_uri=sqlite_uri, detectors=default_detectors())
    assert len(kept()) == 1


def test_a_running_run_is_not_cached_and_remember_false_caches_nothing(sqlite_uri: str) -> None:
    compare([store_run(sqlite_uri, falling(), status="RUNNING")], tracking_uri=sqlite_uri)
    compare([store_run(sqlite_uri, falling())], tracking_uri=sqlite_uri, remember=False)
    assert kept() == []


def test_a_cache_that_cannot_be_written_does_not_stop_a_comparison(
    sqlite_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder().parent.mkdir(parents=True)
    folder().write_text("in the way")
    assert compare([store_run(sqlite_uri, falling())], tracking_uri=sqlite_uri).runs
    assert "not cached" in caplog.text


@pytest.mark.slow
def test_processes_of_their_own_give_the_same_cards(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [store_run(sqlite_uri, falling(number)) for number in range(3)]
    sources = [*runs, NO_RUN]
    alone = compare(sources, tracking_uri=sqlite_uri, remember=False)
    monkeypatch.setattr(cards_module, "STARTING", 0.0)
    monkeypatch.setattr(cards_module.os, "cpu_count", lambda: 2)
    rows: list[tuple[int, int, int]] = []
    together = compare(sources, tracking_uri=sqlite_uri, remember=False, progress=lambda *result: rows.append(result))
    assert together == alone
    assert [done for done, _, _ in rows] == [1, 2, 3, 4]
    assert rows[-1] == (4, 4, 1)


def test_processes_are_not_started_for_what_is_read_sooner(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [store_run(sqlite_uri, falling(number)[:20]) for number in range(6)]
    monkeypatch.setattr(cards_module, "STARTING", 1e9)
    monkeypatch.setattr(cards_module.os, "cpu_count", lambda: 2)
    before = set(psutil.Process().children())
    started: set[psutil.Process] = set()

    def look(done: int, total: int, failed: int) -> None:
        started.update(set(psutil.Process().children()) - before)

    assert len(compare(runs, tracking_uri=sqlite_uri, remember=False, progress=look).runs) == 6
    assert started == set()


@pytest.mark.slow
def test_a_process_that_dies_loses_the_runs_that_it_held(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than both can have answered before this process, which may be slow, hears the first answer and ends them.
    count = cards_module.KNOWN_AFTER + 6
    runs = [store_run(sqlite_uri, falling(number)[:20]) for number in range(count)]
    monkeypatch.setattr(cards_module, "STARTING", 0.0)
    monkeypatch.setattr(cards_module.os, "cpu_count", lambda: 2)
    mine = set(psutil.Process().children())

    def kill(done: int, total: int, failed: int) -> None:
        for child in set(psutil.Process().children()) - mine:
            child.kill()

    comparison = compare(runs, tracking_uri=sqlite_uri, remember=False, progress=kill)
    assert len(comparison.runs) + len(comparison.unread) == count
    assert not comparison.interrupted
    assert any("ended early" in card.error for card in comparison.unread)


def test_ctrl_c_returns_the_runs_read_so_far(sqlite_uri: str) -> None:
    runs = [store_run(sqlite_uri, falling(number)) for number in range(3)]

    def press(done: int, total: int, failed: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    comparison = compare(runs, tracking_uri=sqlite_uri, progress=press)
    assert comparison.interrupted
    assert (len(comparison.runs), comparison.asked) == (2, 3)


def test_a_baseline_is_added_to_the_runs_and_may_go_by_its_name(sqlite_uri: str) -> None:
    good, bad = store_run(sqlite_uri, falling(), name="good"), store_run(sqlite_uri, diverging(), name="bad")
    by_id = compare([bad], baseline=good, tracking_uri=sqlite_uri).gate
    by_name = compare([bad, good], baseline="good", tracking_uri=sqlite_uri).gate
    for gate in (by_id, by_name):
        assert gate is not None
        assert (gate.name, gate.passed) == ("good", False)
    with pytest.raises(SettingsError, match="baseline"):
        compare([bad], baseline=NO_RUN, tracking_uri=sqlite_uri)


def test_one_run_may_be_asked_for_without_a_list_and_a_baseline_by_its_path() -> None:
    good = write_log(Path("good.jsonl"), falling())
    write_log(Path("bad.jsonl"), diverging())
    assert [card.source for card in compare("bad.jsonl").cards] == ["bad.jsonl"]
    gate = compare(Path("bad.jsonl"), baseline=good).gate
    assert gate is not None
    assert (gate.baseline, gate.passed) == ("good.jsonl", False)


def test_a_run_that_is_asked_for_in_two_ways_counts_once(sqlite_uri: str) -> None:
    write_log(Path("logs/good.jsonl"), falling())
    write_log(Path("logs/bad.jsonl"), diverging())
    comparison = compare(["logs", "./logs/good.jsonl"], baseline=str(Path("logs/good.jsonl").absolute()))
    assert sorted(card.source for card in comparison.cards) == ["logs/bad.jsonl", "logs/good.jsonl"]
    assert comparison.gate is not None
    assert [verdict.source for verdict in comparison.gate.verdicts] == ["logs/bad.jsonl"]
    run_id = store_run(sqlite_uri, falling())
    assert [card.source for card in compare([run_id, run_id.upper()], tracking_uri=sqlite_uri).cards] == [run_id]


def test_logs_are_compared_even_if_the_store_of_the_other_runs_does_not_answer() -> None:
    write_log(Path("good.jsonl"), falling())
    comparison = compare(["good.jsonl", NO_RUN], tracking_uri="http://127.0.0.1:9")
    assert len(comparison.runs) == 1
    assert "does not answer" in comparison.unread[0].error
    with pytest.raises(TrackingError, match="does not answer"):
        compare([NO_RUN], tracking_uri="http://127.0.0.1:9")


@pytest.mark.slow
def test_a_store_that_goes_away_is_not_asked_about_each_run(
    troubled_server: TroubledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(store_client, "REMEMBER_SECONDS", 0.0)
    write_log(Path("good.jsonl"), falling())
    runs = [f"{number:032x}" for number in range(9)]
    troubled_server.down_after = 1
    comparison = compare([*runs, "good.jsonl"], tracking_uri=troubled_server.url)
    assert [card.source for card in comparison.cards] == ["good.jsonl"]
    assert len(comparison.unread) == 9
    assert len([path for path in troubled_server.requests if "/runs/get" in path]) == 1


@pytest.mark.parametrize(("call", "when", "read"), [("get_run", 2, 0), ("get_metric_history", 3, 2)])
def test_ctrl_c_before_and_after_reading_shows_the_runs_read_so_far(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, call: str, when: int, read: int
) -> None:
    runs = [store_run(sqlite_uri, falling(number)) for number in range(2)]
    asked, calls = getattr(MlflowClient, call), 0

    def pressed(client: MlflowClient, *text: str) -> object:
        nonlocal calls
        calls += 1
        if calls == when:
            raise KeyboardInterrupt
        return asked(client, *text)

    monkeypatch.setattr(MlflowClient, call, pressed)
    comparison = compare(runs, tracking_uri=sqlite_uri)
    assert comparison.interrupted
    assert (len(comparison.runs), comparison.asked) == (read, 2)


@pytest.mark.slow
def test_comparing_loads_no_torch_and_diagnosing_no_statistics() -> None:
    write_log(Path("a.jsonl"), falling())
    write_log(Path("b.jsonl"), falling(1))
    here = f"import os; os.chdir({str(Path.cwd())!r})\nimport mlflow_stability\n"
    both = loaded_by(f"{here}mlflow_stability.compare(['a.jsonl', 'b.jsonl'])")
    assert both & {"torch", "mlflow", "rich", "jinja2"} == set()
    assert loaded_by(f"{here}mlflow_stability.diagnose('a.jsonl')") & {"scipy"} == set()


@pytest.mark.slow
def test_a_script_without_a_guard_around_its_main_part_can_compare_many(sqlite_uri: str) -> None:
    runs = [store_run(sqlite_uri, falling(number)[:20]) for number in range(12)]
    script = Path("script.py")
    script.write_text(
        "import os; os.cpu_count = lambda: 2\n"
        "from mlflow_stability.analysis import cards; cards.STARTING = 0.0\n"
        "import mlflow_stability\n"
        f"print(mlflow_stability.compare({runs!r}, tracking_uri={sqlite_uri!r}, remember=False).summary)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python(DELIVERY), str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("12 runs:"), done.stderr
