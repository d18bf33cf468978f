from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.repository import PACKAGE, ROOT, imported_names, python_files, tree_of

from mlflow_stability.kinds.catalog import DETECTORS, ON_REQUEST, RULES

# What each room may import from outside the standard library: seeing the library tells which room you are in.
FOREIGN = {
    "alerts": {"apprise", "opentelemetry", "prometheus_client", "tensorboard", "wandb"},
    "analysis": {"distributed", "numpy", "pandas"},
    "assistants": {"mcp", "numpy"},
    "cli": {"click", "numpy", "pandas", "rich"},
    "courier": {"numpy", "psutil"},
    "curves": {"numpy"},
    "demo": {"torch"},
    "detectors": {"numpy"},
    "diagnosis": {"numpy", "scipy"},
    "errors": set(),
    "figures": {"matplotlib", "numpy"},
    "importers": {"numpy", "pandas"},
    "journal": {"numpy", "orjson", "psutil"},
    "kinds": {"numpy"},
    "manual": set(),
    "probes": {"torch"},
    "recovery": {"numpy", "torch"},
    "reports": {"jinja2", "numpy", "rich"},
    "session": {"torch"},
    "tracking": {"mlflow", "numpy", "pyarrow"},
    "vocabulary": {"numpy"},
}

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def contracts() -> Iterator[configparser.SectionProxy]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    yield from (parser[name] for name in parser.sections() if name.startswith("importlinter:contract:"))


def rooms() -> list[str]:
    return sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in python_files(PACKAGE)})


def test_every_import_contract_is_kept() -> None:
    checked = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--config", str(ROOT / ".importlinter")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_contracts_are_sentences_and_have_no_list_of_exceptions() -> None:
    for contract in contracts():
        assert len(contract["name"].split()) >= 4
        assert "ignore_imports" not in contract or contract["type"] == "independence"


def test_only_rules_for_whole_curves_know_another_file_the_detector_of_their_kind() -> None:
    (strangers,) = (contract for contract in contracts() if contract["type"] == "independence")
    rules = {rule.__module__: rule.kind for rule in RULES}
    detectors = {detector.__module__: detector.kind for detector in DETECTORS}
    for line in strangers["ignore_imports"].strip().splitlines():
        rule, detector = line.split(" -> ")
        assert rules[rule] == detectors[detector]


def test_every_detector_of_the_catalog_is_a_stranger_to_the_others() -> None:
    (strangers,) = (contract for contract in contracts() if contract["type"] == "independence")
    packages = {modules.removesuffix(".*") for modules in strangers["modules"].split()}
    assert packages == {detector.__module__.rpartition(".")[0] for detector in (*DETECTORS, *ON_REQUEST)}


def test_every_room_is_named_with_what_it_may_import_from_outside() -> None:
    assert set(FOREIGN) == set(rooms()) - {"__init__", "__main__"}


@pytest.mark.parametrize("room", sorted(FOREIGN))
def test_a_foreign_library_shows_which_room_you_are_in(room: str) -> None:
    folder = PACKAGE / room
    files = python_files(folder) if folder.is_dir() else [folder.with_suffix(".py")]
    for file in files:
        tops = {name.partition(".")[0] for name in imported_names(file)}
        foreign = tops - set(sys.stdlib_module_names) - {"mlflow_stability"}
        assert foreign <= FOREIGN[room], f"{file.relative_to(ROOT)} imports {sorted(foreign - FOREIGN[room])}"


def test_only_the_public_names_are_imported_for_type_checkers_alone() -> None:
    using = [path.relative_to(ROOT) for path in python_files(PACKAGE) if "TYPE_CHECKING" in set(imported_aliases(path))]
    assert using == [Path("mlflow_stability/__init__.py")]


def imported_aliases(path: Path) -> Iterator[str]:
    for node in tree_of(path).body:
        yield from (alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name"))
