from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.campaign import Campaign

pytestmark = pytest.mark.slow
PLANTED = {
    "raises": "KeyError: 'undocumented'",
    "hangs": "took more than 1 s",
    "takes_memory": "MemoryError",
    "writes_outside": "writes ",
    "removes_outside": "os.remove",
    "starts_a_process": "subprocess.Popen",
    "connects": "socket.connect",
    "unpickles": "looks up os.system",
    "runs_code": "runs <code object",
    "hides_it": "writes ",
    "dies": "died with status 3",
}


def test_drawn_inputs_break_no_promise() -> None:
    outcomes = Campaign(600, seed=1).run()
    assert [fault for outcome in outcomes.values() for fault in outcome.faults] == []
    assert all(outcome.accepted > 0 for outcome in outcomes.values()), outcomes


def test_each_kind_of_broken_promise_is_noticed_and_its_input_kept(tmp_path: Path) -> None:
    outcomes = Campaign(1, saved=tmp_path, more="fuzz.planted", seconds=1.0).run()
    assert outcomes["sound"].faults == []
    faults = {name: outcome.faults[0].what for name, outcome in outcomes.items() if outcome.faults}
    assert {name for name, what in PLANTED.items() if what in faults.get(name, "")} == {*PLANTED}
    assert {*outcomes} == {"sound", *PLANTED}
    assert (tmp_path / "raises-0-0-input").read_bytes().startswith(b"cos")


def test_the_same_seed_gives_the_same_inputs_wherever_it_begins(tmp_path: Path) -> None:
    kept = []
    for first, folder in ((0, tmp_path / "a"), (1, tmp_path / "b")):
        folder.mkdir()
        Campaign(2 - first, first=first, only=("raises",), saved=folder, more="fuzz.planted").run()
        kept.append((folder / "raises-0-1-input").read_bytes())
    assert kept[0] == kept[1]
