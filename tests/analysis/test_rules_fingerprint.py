from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from architecture.repository import ROOT

from mlflow_stability.analysis.rules_fingerprint import ROOMS, fingerprint_of, fingerprint_of_rules


def copied(folder: Path) -> Path:
    for room in ROOMS:
        shutil.copytree(ROOT / "mlflow_stability" / room, folder / room, ignore=shutil.ignore_patterns("*.pyc"))
    return folder


def test_a_changed_rule_is_another_fingerprint(tmp_path: Path) -> None:
    package = copied(tmp_path / "package")
    before = fingerprint_of(package)
    assert before == fingerprint_of(ROOT / "mlflow_stability")
    rule = package / "diagnosis" / "parting.py"
    rule.write_text(rule.read_text() + "# another one\n")
    assert fingerprint_of(package) != before


def test_it_is_the_same_in_a_zip_file_and_empty_where_nothing_can_be_read(tmp_path: Path) -> None:
    package = copied(tmp_path / "package")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", package))
    with zipfile.ZipFile(archive) as packed:
        assert fingerprint_of(zipfile.Path(packed)) == fingerprint_of(package)
    assert fingerprint_of(tmp_path / "nowhere") == ""
    for file in package.rglob("*.py"):
        file.unlink()
    assert fingerprint_of(package) == ""


def test_it_is_found_once() -> None:
    assert fingerprint_of_rules()
    assert fingerprint_of_rules() is fingerprint_of_rules()
