from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recovery.restorable import OPTIMIZERS, Training, bits

from mlflow_stability.errors import CheckpointsRefused, SettingsError
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore, to_delete
from mlflow_stability.recovery.checkpoints.state_file import read_state, write_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    CheckpointMeta,
    damage_of,
    find,
    listing,
    read_meta,
    step_of_name,
)
from mlflow_stability.recovery.state.restore import EVERYTHING, restore_state
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state


def training() -> Training:
    made = Training.of(OPTIMIZERS["adamw foreach"])
    made.run(2)
    return made


STATE = copy_state(training().parts, 0)


def at(step: int) -> StateCopy:
    return dataclasses.replace(STATE, step=step)


def filled(directory: Path, *steps: int, most: int = 10, good: bool = True) -> CheckpointStore:
    store = CheckpointStore(directory, "r", most)
    for step in steps:
        store.commit(at(step), 3.0 - step / 1000)
        if good:
            store.promote(step)
    return store


def steps_in(directory: Path) -> list[int]:
    return [point.step for point in listing(directory)]


def test_a_checkpoint_is_a_folder_with_its_state_and_its_facts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", "r")
    made = training()
    meta = store.commit(copy_state(made.parts, 500), 3.82341)
    folder = tmp_path / "c" / "rollback_ckpt-000500-3.8234"
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "state.pt"]
    facts = json.loads((folder / "meta.json").read_bytes())
    assert (facts["step"], facts["loss"], facts["schema"]) == (500, 3.82341, 1)
    assert (facts["finite"], facts["good"]) == (True, False)
    assert facts["size"] == (folder / "state.pt").stat().st_size == meta.size
    assert damage_of(listing(store.directory)[0]) == ""
    content = torch.load(folder / "state.pt", weights_only=True)
    assert torch.equal(content["tensors"]["head.weight"], made.model.head.weight)


def test_a_training_continues_bit_for_bit_from_a_checkpoint(tmp_path: Path) -> None:
    made = training()
    store = CheckpointStore(tmp_path, "r")
    store.commit(copy_state(made.parts, 2), 1.0)
    before = bits(made)
    made.run(3)
    restore_state(read_state(find(tmp_path, "newest").checkpoint.folder / "state.pt"), made.parts, EVERYTHING)
    assert bits(made) == before


class Bomb:
    """Makes a folder as it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_a_state_that_would_run_code_is_refused(tmp_path: Path) -> None:
    for content in (Bomb(tmp_path / "broken in"), {"schema": 1, "step": Bomb(tmp_path / "broken in")}):
        torch.save(content, tmp_path / "state.pt")
        with pytest.raises(CheckpointsRefused, match="holds something else than a state that mlflow-stability saved"):
            read_state(tmp_path / "state.pt")
    assert not (tmp_path / "broken in").exists()


@pytest.mark.parametrize("at", range(-22, -18))
def test_a_state_whose_end_is_damaged_is_refused(tmp_path: Path, at: int) -> None:
    write_state(STATE, tmp_path / "state.pt")
    content = bytearray((tmp_path / "state.pt").read_bytes())
    content[at] ^= 0xFF  # the mark of the record that says where the list of parts is
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(CheckpointsRefused, match="holds something else than a state"):
        read_state(tmp_path / "state.pt")


@pytest.mark.parametrize(
    "content", [1, [], {}, {"schema": None}, {"schema": 1}, {"schema": 1, "step": 1, "tensors": 2}]
)
def test_a_file_of_another_program_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(CheckpointsRefused, match="holds something else than a state that mlflow-stability saved"):
        read_state(tmp_path / "state.pt")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e30, -2.5, 0.0])
def test_any_loss_can_be_in_name_and_facts(loss: float, tmp_path: Path) -> None:
    meta = CheckpointMeta(7, loss, "0", 1, 0.0)
    assert step_of_name(meta.name) == 7
    read = read_meta(meta.to_json())
    assert read is not None
    assert repr(read.loss) == repr(loss)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"null", b'{"step": "x"}', b"\xff\x00"])
def test_damaged_metadata_is_not_read(content: bytes) -> None:
    assert read_meta(content) is None


def test_a_promoted_checkpoint_is_good_and_is_no_longer_rejected(tmp_path: Path) -> None:
    store = filled(tmp_path, 100)
    store.commit(at(200), 2.0)
    assert [item.is_good for item in listing(store.directory)] == [True, False]
    store.reject(100)
    store.reject(200)
    assert steps_in(tmp_path) == [100]


def test_no_more_than_asked_are_kept_and_always_the_best_and_the_last_good_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "r", 4)
    for step, loss in ((100, 2.0), (200, 0.5), (300, 1.9), (400, 1.8), (500, 1.7), (600, 1.6)):
        store.commit(at(step), loss)
        assert len(listing(store.directory)) <= 4
        store.promote(step)
    assert steps_in(tmp_path) == [200, 500, 600]
    store.commit(at(700), 9.0)
    assert steps_in(tmp_path) == [200, 500, 600, 700]
    assert not list(tmp_path.glob(".*ing-*"))


METAS = st.lists(st.tuples(st.floats(allow_nan=True), st.booleans()), max_size=14)


@given(METAS, st.integers(2, 6))
def test_of_any_checkpoints_the_best_and_the_last_good_stay_and_no_more_than_asked(
    facts: list[tuple[float, bool]], most: int
) -> None:
    shelf = [CheckpointMeta(step, loss, "", 0, 0.0, good=good) for step, (loss, good) in enumerate(facts)]
    gone = to_delete(shelf, most)
    kept = [value for value in shelf if not any(value is other for other in gone)]
    good = [item for item in shelf if item.good]
    if good:
        assert any(value is good[-1] for value in kept)
        items = [item for item in good if item.loss == item.loss]
        assert not items or min(item.loss for item in items) in [item.loss for item in kept]
    if shelf and not shelf[-1].good:
        assert any(value is shelf[-1] for value in kept)
    assert len(kept) <= max(most, 3)


@given(st.lists(st.floats(0, 9), min_size=1, max_size=12), st.integers(2, 6))
def test_an_unverified_checkpoint_does_not_displace_a_good_one(losses: list[float], most: int) -> None:
    good = [CheckpointMeta(step, loss, "", 0, 0.0, good=True) for step, loss in enumerate(losses)]
    gone = to_delete(good, most)
    left = [value for value in good if not any(value is other for other in gone)]
    assert to_delete([*left, CheckpointMeta(99, float("nan"), "", 0, 0.0)], most) == []


def test_keeping_fewer_than_two_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at least 2"):
        CheckpointStore(tmp_path, "r", 1)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("state.pt", cut, "state.pt has "),
        ("state.pt", flip, "its SHA-256 differs"),
        ("state.pt", Path.unlink, "state.pt is missing"),
        ("meta.json", cut, "meta.json cannot be read"),
        ("meta.json", Path.unlink, "meta.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_replaced_by_the_next_older_one_with_a_message(
    name: str, harm, says: str, tmp_path: Path
) -> None:
    filled(tmp_path, 100, 200, 300)
    harm(listing(tmp_path)[-1].folder / name)
    findings = find(tmp_path, "last_good")
    assert findings.checkpoint.step == 200
    assert len(findings.messages) == 1
    assert says in findings.messages[0]
    assert "rollback_ckpt-000300-2.7000 is damaged" in findings.messages[0]
    assert "using step 200 instead" in findings.messages[0]


def test_the_requested_checkpoint_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "r")
    for step, loss in ((100, 2.0), (200, 0.5), (300, 1.9), (400, 1.8)):
        store.commit(at(step), loss)
        if step < 400:
            store.promote(step)
    for which, step in (("last_good", 300), ("best", 200), ("newest", 400), (100, 100), (400, 400)):
        findings = find(tmp_path, which)
        assert (findings.checkpoint.step, findings.messages) == (step, ())
    other = find(tmp_path, 250)
    assert other.checkpoint.step == 200
    assert other.messages == ("No checkpoint of step 250; using step 200 instead.",)


def test_without_a_verified_checkpoint_the_newest_is_used_with_a_message(tmp_path: Path) -> None:
    filled(tmp_path, 100, 200, good=False)
    findings = find(tmp_path, "last_good")
    assert findings.checkpoint.step == 200
    assert "No checkpoint is verified" in findings.messages[0]


def test_where_nothing_can_be_used_the_reasons_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointsRefused, match="No checkpoint in"):
        find(tmp_path)
    filled(tmp_path, 100, 200)
    with pytest.raises(CheckpointsRefused, match=r"No checkpoint of step 50 or before .* available steps: 100, 200"):
        find(tmp_path, 50)
    for item in listing(tmp_path):
        flip(item.folder / "state.pt")
    with pytest.raises(CheckpointsRefused, match=r"000200-2\.8000 is damaged .*000100-2\.9000 is damaged"):
        find(tmp_path)


def other_process(directory: Path, run: str, wait: bool) -> subprocess.Popen[str]:
    script = f"""
        import sys
        from pathlib import Path
        from mlflow_stability.recovery.checkpoints.checkpoint_store import DirectoryOwner
        DirectoryOwner(Path({str(directory)!r}), {run!r}).take(True)
        print("taken", flush=True)
        {"sys.stdin.read()" if wait else ""}
    """
    root = Path(sys.modules["mlflow_stability"].__file__ or "").parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("run", ["r", "other"])
def test_two_trainings_in_one_directory_are_refused(run: str, tmp_path: Path) -> None:
    with other_process(tmp_path, run, wait=True) as process:
        with pytest.raises(CheckpointsRefused, match=f"is in use by run {run} .process {process.pid}"):
            CheckpointStore(tmp_path, "r")
        process.kill()
    store = CheckpointStore(tmp_path, "r")  # it was killed, and has no checkpoint of its own
    store.commit(at(1), 1.0)


def test_two_runs_in_one_process_do_not_share_a_directory(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "one")
    with pytest.raises(CheckpointsRefused, match="is in use by run one"):
        CheckpointStore(tmp_path, "two")
    store.close()
    CheckpointStore(tmp_path, "two")


def test_a_run_does_not_mix_its_checkpoints_with_those_of_one_that_has_ended(tmp_path: Path) -> None:
    filled(tmp_path, 100).close()
    with pytest.raises(CheckpointsRefused, match=r"holds the checkpoints of run r .which has ended"):
        CheckpointStore(tmp_path, "other")
    assert steps_in(tmp_path) == [100]
    again = CheckpointStore(tmp_path, "r")
    again.commit(at(200), 1.0)
    assert steps_in(tmp_path) == [100, 200]


def test_a_directory_that_another_process_took_over_is_left_to_it(tmp_path: Path) -> None:
    store = filled(tmp_path, 100)
    (tmp_path / "owner.json").write_text(json.dumps({"run": "r", "pid": 1, "started": "", "host": "elsewhere"}))
    with pytest.raises(OSError, match="Another process now uses"):
        store.commit(at(200), 1.0)
    assert steps_in(tmp_path) == [100]


def test_what_a_killed_process_left_behind_is_cleared_away(tmp_path: Path) -> None:
    filled(tmp_path, 100).close()
    (tmp_path / ".writing-1-200").mkdir()
    (tmp_path / ".writing-1-200" / "state.pt").write_bytes(b"half")
    (tmp_path / ".deleting-1-rollback_ckpt-000050-3.0000").mkdir()
    CheckpointStore(tmp_path, "r")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.json", "rollback_ckpt-000100-2.9000"]


@pytest.mark.slow
def test_checkpoints_are_listed_and_verified_without_torch() -> None:
    code = "import sys, mlflow_stability.recovery.checkpoints.stored_checkpoints; assert 'torch' not in sys.modules"
    root = Path(sys.modules["mlflow_stability"].__file__ or "").parent.parent
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, check=True)


def test_an_existing_checkpoint_is_rewritten_only_if_it_is_damaged(tmp_path: Path) -> None:
    store = filled(tmp_path, 100)
    (there,) = listing(store.directory)
    store.commit(at(100), 2.9)
    assert listing(store.directory) == [there]
    cut(there.folder / "state.pt")
    store.commit(at(100), 2.9)
    assert damage_of(listing(store.directory)[0]) == ""
