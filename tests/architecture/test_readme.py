from __future__ import annotations

import ast
import inspect
import re

import click
import pytest
from architecture.readme_parts import PARTS, README, written
from architecture.repository import PACKAGE, ROOT, tree_of

import mlflow_stability
from mlflow_stability.cli.main import Commands, commands
from mlflow_stability.probes.torch_api import OLDEST_TORCH

PAGE = README.read_text(encoding="utf-8")
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("part", sorted(PARTS))
def test_what_is_made_from_the_code_is_up_to_date(part: str) -> None:
    assert written(part) == PARTS[part](), "python tests/architecture/readme_parts.py brings it up to date"


def test_the_sections_come_in_the_order_in_which_people_ask() -> None:
    order = ["Try it", "What you will see", "What is recorded", "What is promised", "Detectors", "Command line"]
    order += ["What it costs", "Options", "The files", "Limits"]
    found = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert [title for title in found if title in order] == order


def test_every_command_and_every_option_is_described() -> None:
    described = section("Command line")
    for name in Commands.summaries:
        assert f"### `{name}`" in described
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert f"`{option.opts[0]}`" in described, f"{name} {option.opts[0]}"


def test_every_exit_code_is_described() -> None:
    assert re.findall(r"^\| (\d+) \|", section("Command line"), re.MULTILINE) == ["0", "1", "2", "130"]


def test_every_setting_is_described_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section("Options"), re.MULTILINE))
    parameters = inspect.signature(mlflow_stability.autolog).parameters
    assert list(parameters) == [name for name in rows if not name.startswith("MLFLOW")]
    for name, parameter in parameters.items():
        default = "./.mlflow-stability" if name == "journal_dir" else f"{parameter.default}".removesuffix(".0")
        assert rows[name].strip("`") == default


def test_every_public_name_is_described() -> None:
    for name in mlflow_stability.__all__:
        assert f"{name}(" in PAGE


def test_every_variable_of_the_environment_is_described() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r"MLFLOW_STABILITY_[A-Z_]+", path.read_text(encoding="utf-8")))
    assert used - {"MLFLOW_STABILITY_COMPLETE"} <= set(re.findall(r"MLFLOW_STABILITY_[A-Z_]+", section("Options")))


def test_every_quantity_that_is_measured_is_described() -> None:
    described = section("What is recorded")
    for quantity in measured():
        assert f"`stability/{quantity}`" in described, quantity


def measured() -> set[str]:
    """The quantities that the code names, at the few places where readings are made."""
    found = set()
    for name in ("probes/reading.py", "session/recording.py", "tracking/thinning.py"):
        for node in ast.walk(tree_of(PACKAGE / name)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Signal", "named") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    assert {"loss", "grad_norm", "overhead_fraction", "nonfinite_values"} <= found
    return found


def test_every_example_is_listed() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert f"`examples/{path.name}`" in section("Options")


@pytest.mark.parametrize("page", [PAGE, MAP], ids=["README", "map"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    for name in re.findall(r"`((?:tests|examples|mlflow_stability)/[\w/.]+)`", page):
        assert (ROOT / name).exists(), name
    rooms = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{rooms})/\w+\.py)`", page):
        assert (PACKAGE / name).exists(), name


def test_the_map_has_every_room_and_draws_the_layers_as_the_contract_has_them() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", MAP, re.MULTILINE)) == rooms
    drawn = MAP.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0].split("\n")
    contract = (
        (ROOT / ".importlinter").read_text(encoding="utf-8").partition("layers =\n")[2].partition("exhaustive")[0]
    )
    there = [[room for room in line.split(" | ") if "(" not in room] for line in contract.strip().split("\n")]
    expected = [" | ".join(room.strip() for room in line) for line in there if line]
    assert [line for line in drawn if line] == expected


def test_the_oldest_torch_is_the_same_everywhere() -> None:
    assert f"PyTorch {OLDEST_TORCH} or later" in section("Limits")
    assert f"torch>={OLDEST_TORCH}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_no_page_has_a_line_of_a_terminal_wider_than_80_columns_but_addresses() -> None:
    blocks = re.findall(r"```text\n(.*?)```", section("What you will see"), re.DOTALL)
    assert all(len(line) <= 80 for block in blocks for line in block.splitlines() if "://" not in line)
