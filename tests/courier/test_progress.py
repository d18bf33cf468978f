"""The pages that a courier leaves for other processes, and for the next courier."""

from __future__ import annotations

import json
from pathlib import Path

from mlflow_stability.courier.progress import CourierStatus, Delivered, StatusPage, write_page
from mlflow_stability.journal.layout import DELIVERED, STATUS


def test_the_next_courier_reads_what_the_last_one_saved(tmp_path: Path) -> None:
    delivered = Delivered(tmp_path, "r", run_id="a" * 32, number=2, offset=7, metrics_until=50, thinning={"a": [1, 2]})
    assert Delivered.read(tmp_path) == Delivered(tmp_path)
    delivered.save()
    assert Delivered.read(tmp_path) == delivered


def test_a_page_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    (tmp_path / DELIVERED).write_text(json.dumps({"metrics_until": 50, "section": "own", "of_later": 1}))
    assert Delivered.read(tmp_path) == Delivered(tmp_path, metrics_until=50, prefix="own")


def test_a_page_that_cannot_be_written_leaves_no_litter_and_raises_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.json"
    assert write_page(page, {"a": 1})
    assert not write_page(tmp_path / "gone" / "page.json", {"a": 2})
    page.unlink()
    page.mkdir()
    assert not write_page(page, {"a": 3})
    assert list(tmp_path.rglob("*")) == [page]


def test_the_status_is_written_where_it_has_changed(tmp_path: Path) -> None:
    page, file = StatusPage(tmp_path), tmp_path / STATUS
    for state, is_new in (("starting", True), ("idle", True), ("idle", False), ("done", True)):
        file.unlink(missing_ok=True)
        page.show(CourierStatus(state))
        assert file.exists() is is_new
    assert json.loads(file.read_text())["state"] == "done"
