from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache

import click
import pytest
import torch
from architecture.repository import PACKAGE, ROOT

import mlflow_stability
from mlflow_stability.cli.commands.manual import all_pages
from mlflow_stability.cli.main import COULD_NOT, FOUND, INTERRUPTED, Commands, commands
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import KINDS
from mlflow_stability.probes.hooks.torch_api import OLDEST_TORCH
from mlflow_stability.reports.formats.json import SCHEMA_VERSION
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Settings

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")
PAGES = [page.name for page in all_pages()]
LONGEST_README = 250


@cache
def texts() -> dict[str, str]:
    """The pages of the manual by name."""
    return {page.name: page.text() for page in all_pages()}


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(README.splitlines()) <= LONGEST_README


def test_every_written_page_is_in_the_contents() -> None:
    written = {path.stem for path in (PACKAGE / "manual").glob("*.md")}
    assert written <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_title(page: str) -> None:
    assert texts()[page].startswith("# ")
    assert texts()[page].count("\n# ") == 0


@pytest.mark.parametrize("page", [*PAGES, "README"])
def test_every_page_that_a_page_links_to_is_there(page: str) -> None:
    text = texts().get(page, README)
    for target in re.findall(r"\]\(([\w./]+)\.md[#\w]*\)", text):
        assert target.rpartition("/")[2] in texts() or (ROOT / f"{target}.md").exists(), target


def test_in_a_checkout_too_every_link_of_a_page_leads_to_a_file() -> None:
    files = [ROOT / "README.md", PACKAGE / "README.md", *(PACKAGE / "manual").glob("*.md")]
    links = [(file, link) for file in files for link in re.findall(r"\]\(([\w./]+)[#\w-]*\)", file.read_text("utf-8"))]
    assert len(links) > 50
    assert not [f"{file.name}: {link}" for file, link in links if not (file.parent / link).exists()]


def test_every_page_that_is_named_by_its_command_is_there() -> None:
    text = "\n".join([README, *texts().values()])
    named = set(re.findall(r"`mlflow-stability manual (\w+)`", text))
    assert {"findings", "causes", "python_api"} <= named - {"PAGE"} <= set(PAGES)


def test_every_finding_and_every_cause_has_a_section() -> None:
    assert set(KINDS) <= set(re.findall(r"^## (\w+)$", texts()["findings"], re.MULTILINE))
    assert set(causes()) == set(re.findall(r"^## (\w+)$", texts()["causes"], re.MULTILINE))


def test_every_command_and_every_option_is_described() -> None:
    for name in Commands.summaries:
        described = texts()["command_line"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.opts[0] in described, f"{name} {option.opts[0]}"


def test_every_argument_of_autolog_is_described_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \| .{16}", texts()["options"], re.MULTILINE))
    parameters = inspect.signature(mlflow_stability.autolog).parameters
    assert list(parameters) == [name for name in rows if name in parameters]
    for name, parameter in parameters.items():
        assert rows[name] == repr(parameter.default).replace("'", '"')


def test_the_defaults_of_autolog_are_those_of_the_settings() -> None:
    settings = {field.name: field for field in fields(Settings)}
    for name, parameter in inspect.signature(mlflow_stability.autolog).parameters.items():
        if name not in ("options", "disable", "extra_tags"):
            assert settings[name].default == parameter.default, name


def test_every_extra_is_described() -> None:
    section = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = re.findall(r"^(\w+) = \[", section.partition("\n[")[0], re.MULTILINE)
    assert {"alerts", "otel", "torch"} <= set(extras)
    table = texts()["options"].partition("| needed for | extra |")[2].partition("\n\n")[0]
    assert sorted(extras) == sorted(re.findall(r"\| `(\w+)` \|$", table, re.MULTILINE))


def test_the_public_interface_names_the_exit_codes_and_the_version_of_the_json() -> None:
    page = texts()["public_interface"]
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == [str(code) for code in (0, FOUND, COULD_NOT, INTERRUPTED)]
    assert f"`schema_version` {SCHEMA_VERSION}." in page
    for schema in re.findall(r"(\w+\.schema\.json)", page):
        assert (PACKAGE / "reports" / "formats" / schema).is_file()


def test_every_public_name_is_described() -> None:
    assert set(mlflow_stability.__all__) == set(re.findall(r"^## (\w+)$", texts()["python_api"], re.MULTILINE))


def test_every_field_of_a_public_type_is_described() -> None:
    for name in mlflow_stability.__all__:
        section = texts()["python_api"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        table = section.partition("| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
        assert not [line for line in table.splitlines() if line.endswith("|  |")], name
        if is_dataclass(getattr(mlflow_stability, name)):
            there = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
            assert there == {field.name for field in fields(getattr(mlflow_stability, name))}


def test_findings_of_every_source_are_findings_and_say_what_they_are() -> None:
    losses = [2.0 / (1 + step / 60) + 0.01 * (step % 3) for step in range(400)]
    losses[300] = 50.0
    (spike,) = mlflow_stability.judge(losses).findings
    assert isinstance(spike, mlflow_stability.Finding)
    assert repr(spike) == f"<Finding {spike.severity.name} loss_spike: {spike.message}>"
    (frozen,) = mlflow_stability.check(torch.nn.Linear(4, 4).requires_grad_(requires_grad=False)).findings[:1]
    assert isinstance(frozen, mlflow_stability.ModelFinding)
    assert repr(frozen) == f"<ModelFinding {frozen.severity.name} {frozen.kind}: {frozen.message}>"
    for finding in (spike, frozen):
        assert isinstance(finding.severity, mlflow_stability.Severity)


def test_the_signature_of_autolog_has_every_argument_with_its_default() -> None:
    signature = texts()["python_api"].partition("\n## autolog\n")[2].partition("```text\n")[2].partition("```")[0]
    for name in inspect.signature(mlflow_stability.autolog).parameters:
        assert re.search(rf"^    {name}: .+ = .+,$", signature, re.MULTILINE), name


def test_every_variable_of_the_environment_is_described() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r"MLFLOW_STABILITY_[A-Z_]+", path.read_text(encoding="utf-8")))
    assert used - {"MLFLOW_STABILITY_COMPLETE"} <= set(re.findall(r"MLFLOW_STABILITY_[A-Z_]+", texts()["options"]))


def test_every_quantity_that_is_measured_is_described() -> None:
    for quantity in measured():
        assert f"`{quantity}`" in texts()["signals"], quantity


def measured() -> set[str]:
    """The quantities that the code names, at the few places where readings are made."""
    seen = set()
    for name in ("probes/step/capture.py", "session/recording/recording.py", "tracking/thinning.py"):
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Signal", "named") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    seen.add(first.value)
    assert {"loss", "grad_norm", "overhead_fraction", "nonfinite_values"} <= seen
    return seen


def test_the_page_on_recovery_has_the_intervals_of_the_policy() -> None:
    policy = RollbackPolicy()
    for name in ("snapshot_every", "rollback_checkpoint_interval", "healthy_after"):
        assert re.search(rf" {getattr(policy, name)} (healthy )?steps \(`{name}`\)", texts()["recovery"]), name


def test_every_example_is_listed() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert f"`examples/{path.name}`" in texts()["getting_started"]


@pytest.mark.parametrize("page", [*PAGES, "README"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    for name in named_files(texts().get(page, README)):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def named_files(text: str) -> Iterator[str]:
    rooms = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    yield from re.findall(r"`((?:tests|examples|mlflow_stability)/[\w/.]+)`", text)
    yield from re.findall(rf"`((?:{rooms})/\w+\.py)`", text)


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
    assert f"PyTorch {OLDEST_TORCH} or later" in texts()["limits"]
    assert f"PyTorch {OLDEST_TORCH} or later" in README
    assert f"torch>={OLDEST_TORCH}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_oldest_mlflow_is_the_same_everywhere() -> None:
    (oldest,) = re.findall(r'"mlflow>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for text in (texts()["limits"], texts()["getting_started"], README):
        assert f"MLflow {oldest} or later" in text
