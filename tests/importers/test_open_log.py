from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.log_format import formats
from mlflow_stability.importers.open_log import read, read_file, read_folder
from mlflow_stability.vocabulary.run import RunHistory

LOG = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 9))


def refused(path: Path) -> str:
    with pytest.raises(UnreadableLogError) as caught:
        read(path)
    message = str(caught.value)
    assert message.endswith(".")
    assert message.isprintable()
    return message


def read_or_refused(path: Path) -> RunHistory | None:
    """The run in a file; None if it was refused in one sentence."""
    try:
        (run,) = read(path)
    except UnreadableLogError as refusal:
        message = str(refusal)
    else:
        return run
    assert message.isprintable()
    assert message.endswith(".")
    return None


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    assert f"No such file: {tmp_path / 'gone.log'}" in refused(tmp_path / "gone.log")


def test_an_empty_file_is_refused_as_empty(tmp_path: Path) -> None:
    for content in ("", " \n\n"):
        (tmp_path / "train.log").write_text(content)
        assert "train.log is empty" in refused(tmp_path / "train.log")


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder that every user may enter, for a user who is not root."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        was_root = os.geteuid() == 0
        yield Path(folder)
        if was_root:
            os.seteuid(0)


def become_nobody() -> None:
    formats()  # found once for the process: that user may not list a checkout in the home of root
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_file_without_read_permission_is_refused_as_such(as_nobody: Path) -> None:
    (as_nobody / "train.log").write_text(LOG)
    (as_nobody / "train.log").chmod(0)
    become_nobody()
    assert "permission denied" in refused(as_nobody / "train.log")


def test_a_folder_without_permission_is_refused_as_such(as_nobody: Path) -> None:
    closed = as_nobody / "closed"
    closed.mkdir()
    (closed / "train.log").write_text(LOG)
    closed.chmod(0)
    become_nobody()
    for path in (closed, closed / "train.log"):
        assert "ermission" in refused(path)
    os.seteuid(os.getuid())
    closed.chmod(0o755)


def test_an_unreadable_file_next_to_a_log_is_noted(as_nobody: Path) -> None:
    (as_nobody / "good.log").write_text(LOG)
    (as_nobody / "secret.log").write_text(LOG)
    (as_nobody / "secret.log").chmod(0)
    become_nobody()
    (run,) = read(as_nobody)
    assert "secret.log cannot be read: permission denied" in " ".join(run.notes)


@pytest.mark.parametrize("name", ["a" * 5000, "nul\0byte"])
def test_a_file_name_that_no_system_allows_is_refused(name: str) -> None:
    refused(Path(name))


def test_a_database_is_refused_with_the_option_that_reads_a_store(sqlite_uri: str, tmp_path: Path) -> None:
    assert f"--tracking-uri {sqlite_uri}" in refused(tmp_path / "store" / "mlflow.db")


def test_a_binary_file_is_refused_as_binary(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(bytes(range(256)) * 40)
    assert "binary" in refused(tmp_path / "model.pt")


def test_a_device_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a file or folder" in refused(tmp_path / "pipe")


def test_prose_and_configuration_files_are_refused_as_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A project\n\nIt trains for 10 epochs and has a loss.\n")
    assert "not a readable training log" in refused(tmp_path / "README.md")
    (tmp_path / "config.json").write_text('{"lr": 0.1, "layers": [1, "x"]}')
    assert "not a readable training log" in refused(tmp_path / "config.json")


def test_a_damaged_compressed_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b" + b"not really packed at all")
    assert "log.gz" in refused(tmp_path / "log.gz")


def test_control_characters_in_a_path_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in refused(tmp_path / "a\x1b[31mb\nc.log")


def test_the_content_decides_the_format_and_the_name_does_not(tmp_path: Path) -> None:
    assert history(tmp_path, "step,loss\n1,3\n2,2\n", "metrics.json").format == "progress_csv"
    assert history(tmp_path, '{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n', "results.csv").format == "json_lines"
    assert history(tmp_path, LOG, "events.out.tfevents.1").format == "text"


def test_a_folder_gives_every_log_in_it_with_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.log").write_text(LOG)
    (tmp_path / "a" / "notes.txt").write_text("nothing to see")
    (tmp_path / "metrics.csv").write_text("step,loss\n1,3\n2,2\n")
    (tmp_path / "train.py").write_text(LOG)
    (tmp_path / ".hidden.log").write_text(LOG)
    assert [run.source for run in read(tmp_path)] == [str(tmp_path / "a" / "train.log"), str(tmp_path / "metrics.csv")]


def test_a_folder_without_logs_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    assert "No training log in" in refused(tmp_path)


def test_a_folder_that_links_to_itself_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "again").symlink_to(tmp_path)
    assert len(read(tmp_path)) == 1


@given(st.one_of(st.binary(max_size=400), st.text(max_size=300).map(str.encode)))
def test_any_file_is_read_or_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "file"
    file.write_bytes(content)
    run = read_or_refused(file)
    assert run is None or run.points > 1


mixed = st.sampled_from(
    [
        "step,loss",
        "1,2",
        "2,nan",
        ",",
        '{"loss": 1}',
        '{"step": 3, "loss": null}',
        "step 1 loss 2",
        "step 2 loss nan",
        "| a | 1 |",
        "---",
        "[",
        "]",
        "{",
        "epoch train_loss",
        "1 2",
        "\x1b[31m",
        "Epoch 1/3",
        "loss: 0.5",
        "step: 99999999999999999999 loss: 1e400",
        "step,loss,x",
    ]
)


@given(st.lists(mixed, max_size=25))
def test_any_mixture_of_lines_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    file = tmp_path_factory.mktemp("mixed") / "file"
    file.write_text("\n".join(lines))
    run = read_or_refused(file)
    for metric in run.metrics if run is not None else ():
        pairs = list(zip(metric.series.attempts.tolist(), metric.series.steps.tolist(), strict=True))
        assert pairs == sorted(pairs)


@pytest.mark.parametrize("text", ['{"log_history":[null,null]}', "[1,2,3]", '["a","b"]', "[[1,2],[3,4]]"])
def test_json_without_rows_is_no_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UnreadableLogError, match="not a readable training log"):
        read(tmp_path / "a.json")


def test_a_log_that_a_reader_was_not_written_for_does_not_take_the_folder_with_it(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')

    def reader(path: Path) -> RunHistory:
        if path.name == "b.jsonl":
            raise TypeError("of a kind nobody thought of")
        return read_file(path)

    (result,) = read_folder(tmp_path, reader)
    assert result.name == "a.jsonl"
    assert "b.jsonl could not be read: unexpected TypeError" in result.notes[-1]


def test_a_bar_that_is_drawn_before_the_value_of_its_step_is_known_is_read_once(tmp_path: Path) -> None:
    losses = [9.0, 7.0, 8.0, 5.0, 6.0]
    pairs = [f"Epoch 0: 5%|#| {n + 1}/99 [00:01<00:10, 4it/s, loss={item}]\n" for n, item in enumerate(losses)]
    stale = [line.replace(f" {n + 1}/", f" {n + 2}/") for n, line in enumerate(pairs)]
    drawn = "".join(own + old for own, old in zip(pairs, stale, strict=True))
    assert curve(history(tmp_path, drawn), "loss")[:5] == [(n + 1, item) for n, item in enumerate(losses)]
    by_two_loggers = "".join(f"step {n} loss 5.54\nINFO step {n} loss 5.54\n" for n in range(4))
    assert curve(history(tmp_path, by_two_loggers), "loss") == [(n, 5.54) for n in range(4)]
    repeated = "".join(f"step {n} loss {item}\n" for n, item in enumerate([2.0, 2.0, 1.0, 1.0, 3.0]))
    assert [value for _, value in curve(history(tmp_path, repeated), "loss")] == [2.0, 2.0, 1.0, 1.0, 3.0]
