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


@pytest.mark.parametrize("typed", [["nonsense"], ["sync", "--nonsense"], ["sync", "no/such/folder"]])
def test_wrong_use_ends_with_code_2_and_a_sentence(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Error: " in said.err
    assert "Traceback" not in said.err


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
    found = [item.value for item in completion.get_completions(typed, "-" if typed else "")]
    assert set(offered) <= set(found)


def test_a_mistake_of_ours_is_one_sentence_and_not_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = ("cli.broken_command", "Fail in a way that nobody expected.")
    monkeypatch.setattr(Commands, "summaries", {**Commands.summaries, "broken": summary})
    assert run(["broken"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlflow-stability: unexpected KeyError")
    assert (said.count("\n"), "\x1b" in said) == (1, False)
    monkeypatch.setenv("MLFLOW_STABILITY_TRACEBACK", "1")
    assert run(["broken"]) == 2
    assert "Traceback" in capsys.readouterr().err
