from __future__ import annotations

import click
import pytest
from click.shell_completion import ShellComplete

from mlflow_stability.cli import main
from mlflow_stability.cli.main import Commands, commands, run

NAMES = list(Commands.summaries)


@pytest.fixture
def context() -> click.Context:
    return click.Context(commands)


@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, context: click.Context) -> None:
    command = commands.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").splitlines()[0] == Commands.summaries[name][1]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"mlflow-stability {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["diagnos"], "No such command 'diagnos'. Did you mean 'diagnose'?"),
        (["Compare", "a"], "No such command 'Compare'. Did you mean 'compare'?"),
        (["nonsense"], "No such command 'nonsense'. There are run, watch, open, "),
        (["diagnose", "--tracking-url", "x"], "No such option '--tracking-url'. Did you mean '--tracking-uri'?"),
    ],
)
def test_what_is_misspelt_is_answered_by_what_was_meant(
    typed: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    assert f"Error: {expected}" in capsys.readouterr().err


@pytest.mark.parametrize("typed", [["nonsense"], ["sync", "--nonsense"], ["sync", "no/such/folder"]])
def test_wrong_use_ends_with_code_2_and_a_sentence(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Error: " in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("command", ["diagnose", "compare"])
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--html", "Write --output-format html, or --output FILE.html."),
        ("--json", "Write --output-format json, or --output FILE.json."),
        ("--md", "Write --output-format markdown, or --output FILE.md."),
        ("-o", "--output FILE writes to a file"),
        ("--format", "--output-format takes rich, json, csv, markdown, html;"),
        ("--tracking-ur", "Did you mean '--tracking-uri'?"),
    ],
)
def test_an_option_that_there_is_not_is_answered_by_the_one_that_does_it(
    command: str, typed: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, typed, "run"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert f"No such option '{typed}'" in text
    assert expected in text
    assert "Did you mean '--help'" not in text


def test_no_option_is_offered_that_the_command_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sync", "--json"]) == 2
    assert "--output-format" not in capsys.readouterr().err


def test_nothing_typed_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "doctor" in capsys.readouterr().err


def test_the_entry_point_passes_the_exit_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["mlflow-stability", "--nonsense"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2


@pytest.mark.parametrize(("typed", "offered"), [([], NAMES), (["sync"], ["--tracking-uri", "--wait"])])
def test_a_shell_can_complete_what_is_typed(typed: list[str], offered: list[str]) -> None:
    completion = ShellComplete(commands, {}, "mlflow-stability", "_MLFLOW_STABILITY_COMPLETE")
    values = [item.value for item in completion.get_completions(typed, "-" if typed else "")]
    assert set(offered) <= set(values)


def test_a_mistake_of_ours_is_one_sentence_and_not_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = ("cli.broken_command", "Fail in a way that nobody expected.")
    monkeypatch.setattr(Commands, "summaries", {**Commands.summaries, "broken": summary})
    assert run(["broken"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("mlflow-stability: unexpected KeyError")
    assert (errors.count("\n"), "\x1b" in errors) == (1, False)
    monkeypatch.setenv("MLFLOW_STABILITY_TRACEBACK", "1")
    assert run(["broken"]) == 2
    assert "Traceback" in capsys.readouterr().err
