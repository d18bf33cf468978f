from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from architecture.repository import ROOT

import mlflow_stability

HEAVY = {"lightning", "matplotlib", "mlflow", "pandas", "pyarrow", "torch", "transformers"}
RENDERERS = {"click", "jinja2", "matplotlib", "mlflow", "pandas", "plotly", "pyarrow", "rich"}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def loaded_by(code: str) -> set[str]:
    """The top-level modules that are there after this code, in a process of its own."""
    output = python("-c", f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))")
    return set(output.stdout.split())


@pytest.mark.parametrize(
    "code", ["import mlflow_stability", "import mlflow_stability.cli.main", "import mlflow_stability.errors"]
)
def test_a_first_import_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) & HEAVY == set()


def test_the_command_line_shows_its_import_times_without_torch_or_mlflow() -> None:
    errors = python("-X", "importtime", "-c", "import mlflow_stability.cli.main").stderr
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in errors.splitlines()}
    assert "click" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_no_command(arguments: list[str]) -> None:
    code = f"from mlflow_stability.cli.main import run\nassert run({arguments!r}) == 0"
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.slow
def test_reading_a_run_back_and_delivering_it_never_load_torch() -> None:
    imports = (
        "from mlflow_stability import load_run",
        "from mlflow_stability.kinds.panel import replay",
        "import mlflow_stability.cli.commands.sync",
        "import mlflow_stability.cli.commands.demo",
        "import mlflow_stability.courier.deliver",
    )
    code = "".join(f"{value}\nassert 'torch' not in sys.modules, {value!r}\n" for value in imports)
    assert "mlflow" in loaded_by(code)


@pytest.mark.slow
def test_training_loads_no_renderer_and_no_mlflow() -> None:
    code = "import sys, torch\nbare = set(sys.modules)\nimport mlflow_stability\nmlflow_stability.autolog()"
    ours = python(
        "-c", f"{code}\nprint(*{{name.partition('.')[0] for name in set(sys.modules) - bare}})"
    ).stdout.split()
    assert "mlflow_stability" in ours
    assert set(ours) & RENDERERS == set()


def test_public_names_are_sorted_complete_and_there() -> None:
    assert list(mlflow_stability.__all__) == sorted(mlflow_stability.__all__)
    for name in mlflow_stability.__all__:
        assert getattr(mlflow_stability, name).__name__ == name
    assert set(mlflow_stability.__all__) <= set(dir(mlflow_stability))


def test_a_name_that_is_not_public_says_so() -> None:
    with pytest.raises(AttributeError, match="autologg"):
        mlflow_stability.autologg  # noqa: B018


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (Path(mlflow_stability.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_an_outlet_can_be_the_first_that_is_loaded_of_the_courier() -> None:
    assert "mlflow_stability" in loaded_by("import mlflow_stability.courier.sinks.outlets")
