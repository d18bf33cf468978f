"""What a hostile tracking server can do to those who read its runs: nothing is written outside the folder asked for."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers.hostile_server import RUN_ID, HostileServer

import mlflow_stability
from mlflow_stability.analysis.load import load_run
from mlflow_stability.cli.main import run
from mlflow_stability.errors import StabilityError
from mlflow_stability.tracking.artifacts import (
    EVENTS_FOLDERS,
    LAYER_TABLES_FOLDERS,
    MAPS_FOLDERS,
    RECORD_FOLDERS,
    AttentionPart,
    attention_of_run,
)
from mlflow_stability.tracking.read.run_record import part_name
from mlflow_stability.tracking.run_files import CHECKPOINTS_FOLDER

pytestmark = pytest.mark.slow

NAME = "rollback_ckpt-000500-1.0000"
PLACE = f"{CHECKPOINTS_FOLDER}/{NAME}"
OUTSIDE = [
    "../../x",
    "../../../../../../../../../../tmp/mlflow-stability-was-here",
    "/tmp/mlflow-stability-was-here",
    "..",
    "../" + NAME,
    "a/../../../x",
    "..%2f..%2fx",
    "%2e%2e/x",
    "%252e%252e%252fx",
    "..\\..\\x",
    "C:\\x",
    "file:///tmp/mlflow-stability-was-here",
    "",
    ".",
]


def meta_of(state: bytes) -> bytes:
    facts = {"step": 500, "loss": 1.0, "sha256": hashlib.sha256(state).hexdigest(), "size": len(state), "time": 1.7e9}
    return json.dumps({**facts, "good": True}).encode()


def everything_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder some levels down, in which the commands run."""
    folder = tmp_path / "a" / "b" / "c" / "inside"
    folder.mkdir(parents=True)
    for level in (tmp_path, *(folder.parents[number] for number in range(3))):
        (level / "x").write_text("as it was")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(folder / "journal"))
    return folder


def written_outside(tmp_path: Path, inside: Path) -> list[str]:
    """Paths of files that are not as they were."""
    by_path = {path: text for path, text in everything_below(tmp_path).items() if not path.startswith(str(inside))}
    assert len(by_path) >= 4
    assert not Path("/tmp/mlflow-stability-was-here").exists()
    return [path for path, text in by_path.items() if text != b"as it was"]


@pytest.mark.parametrize(("outside", "is_folder"), list(zip(OUTSIDE, itertools.cycle([True, False]), strict=False)))
def test_a_listing_of_paths_outside_writes_nothing_there(
    outside: str,
    is_folder: bool,
    tmp_path: Path,
    inside: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listings = {
        CHECKPOINTS_FOLDER: [(NAME, True), (outside, True)],
        PLACE: [("meta.json", False), ("state.pt", False), (outside, is_folder)],
        **{folder: [(outside, is_folder)] for folder in (*RECORD_FOLDERS, *EVENTS_FOLDERS)},
    }
    files = {f"{PLACE}/meta.json": meta_of(b"weights"), f"{PLACE}/state.pt": b"weights"}
    for hidden in ({}, {CHECKPOINTS_FOLDER: [(NAME, True)]}):  # else nothing below the first listing is asked for
        with HostileServer(files, {**listings, **hidden}) as server:
            for arguments in (["checkpoints", RUN_ID, "--download", "there"], ["diagnose", RUN_ID]):
                code = run([*arguments, "--tracking-uri", server.url])
                printed = capsys.readouterr()
                assert code == 2
                assert printed.err.startswith("mlflow-stability: ")
                assert len(printed.err.splitlines()) == 1
            model = torch.nn.Linear(2, 2)
            monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
            with pytest.raises(StabilityError):
                mlflow_stability.restore(model, torch.optim.SGD(model.parameters()), run_id=RUN_ID)
        assert not written_outside(tmp_path, inside)


def arrays(**content: Any) -> bytes:
    file = BytesIO()
    np.savez(file, **content)
    return file.getvalue()


def facts(**changed: object) -> bytes:
    return json.dumps({**json.loads(meta_of(b"weights")), **changed}).encode()


CONTENTS = {
    "nothing": b"",
    "bytes": b"\x00\xffnonsense",
    "a pickle": pickle.dumps({"step": 500}),
    "deep": b"[" * 200_000,
    "other lines": b'{"kind":"loss_spike"}\n[]\n1\nnull\n"x"\n{}\n{"kind":"loss_spike","first_step":1e999}\n',
    "a long number": b'{"step": ' + b"9" * 10_000 + b"}",
    "no text": b'{"kind": "\xed\xa0\x80"}',
    "other arrays": arrays(a=1),
    "a deep head": arrays(**{"0.head": np.frombuffer(b"[" * 200_000, np.uint8), "0.weights": np.zeros(3)}),
    "objects": arrays(**{"0.head": np.array([{1}], dtype=object)}),
    "an endless size": facts(size=float("inf")),
    "other facts": facts(sha256=5, time="x", good="yes", best_by=[1], value=3, left_out=[1, 2]),
    "a time without a date": facts(time=1e300),
    "a shard elsewhere": facts(shards=[["../../../etc/passwd", 5, "x"]]),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_whatever_files_hold_they_are_passed_over_or_refused_in_one_sentence(
    content: bytes, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, part = f"{MAPS_FOLDERS[0]}/{AttentionPart(0, 0, 100).name}", part_name(0, 0)
    places = [f"{RECORD_FOLDERS[0]}/{part}", f"{LAYER_TABLES_FOLDERS[0]}/{part}", f"{PLACE}/meta.json", maps]
    places += [f"{PLACE}/state.pt", f"{EVENTS_FOLDERS[0]}/recording-000.jsonl"]
    with HostileServer(dict.fromkeys(places, content), {}) as server:
        for words in (["diagnose", RUN_ID], ["compare", RUN_ID], ["checkpoints", RUN_ID, "--verify"]):
            code = run([*words, "--tracking-uri", server.url])
            printed = capsys.readouterr()
            assert code in (0, 1)
            assert "unexpected" not in printed.err
        with pytest.raises(StabilityError, match=r"^The attention maps cannot be read: "):
            attention_of_run(RUN_ID, server.url).maps(100)
        assert load_run(RUN_ID, tracking_uri=server.url, layout="layers") is not None
    assert set(places) <= set(server.sent) | {f"{PLACE}/state.pt"}


def test_a_file_that_is_listed_as_a_folder_is_refused(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"{PLACE}/meta.json": meta_of(b"weights"), f"{PLACE}/state.pt/deeper/x": b"weights"}
    with HostileServer(files, {}) as server:
        assert run(["checkpoints", RUN_ID, "--download", "there", "--tracking-uri", server.url]) == 2
    errors = capsys.readouterr().err
    assert f"The server sends something else for {PLACE}/state.pt of run {RUN_ID} than one file." in errors


@pytest.mark.parametrize(
    ("sent", "damage"),
    [
        (b"another!", "state.pt has 8 bytes, expected 7"),
        (b"WEIGHTS", "state.pt is damaged: its SHA-256 differs"),
    ],
)
def test_a_checkpoint_of_another_size_or_hash_is_not_restored(
    sent: bytes, damage: str, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{PLACE}/meta.json": meta_of(b"weights"), f"{PLACE}/state.pt": sent}
    with HostileServer(files, {}) as server:
        assert run(["checkpoints", RUN_ID, "--download", "there", "--tracking-uri", server.url]) == 1
        assert damage in " ".join(capsys.readouterr().out.split())
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        model = torch.nn.Linear(2, 2)
        before = model.weight.clone()
        with pytest.raises(StabilityError, match=f"can be used: {NAME} is damaged .{damage}"):
            mlflow_stability.restore(model, torch.optim.SGD(model.parameters()), run_id=RUN_ID)
    assert torch.equal(model.weight, before)
