from __future__ import annotations

import builtins
import collections
import io
import math
import os
import pickle
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history
from importers.test_open_log import read_or_refused, refused

from mlflow_stability.importers.formats.pickled_history import NotPlainError, plain_value
from mlflow_stability.importers.open_log import read

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_keras_history_is_read_whatever_its_numbers_are(tmp_path: Path, protocol: int) -> None:
    kept = {
        "loss": [np.float32(1.5), 2.0, float("nan")],
        "val_loss": [np.float64(2), np.float16(1), np.int64(3)],
        "accuracy": np.array([0.5, 0.25, 0.75], ">f4"),
        "lr": (1e-3, 1e-3, 1e-4),
        "epochs in all": 3,
    }
    run = history(tmp_path, pickle.dumps(kept, protocol), "trainHistoryDict")
    assert run.format == "pickle"
    assert [value for _, value in curve(run, "val_loss")] == [2.0, 1.0, 3.0]
    assert [value for _, value in curve(run, "accuracy")] == [0.5, 0.25, 0.75]
    assert [value for _, value in curve(run, "loss")][:2] == [1.5, 2.0]
    assert math.isnan(curve(run, "loss")[2][1])


def test_rows_and_histories_within_a_dictionary_are_read(tmp_path: Path) -> None:
    rows = [{"epoch": n, "loss": np.float32(1 / (n + 1))} for n in range(4)]
    assert [value for _, value in curve(history(tmp_path, pickle.dumps(rows)), "loss")] == pytest.approx(
        [1, 0.5, 1 / 3, 0.25]
    )
    nested = history(tmp_path, pickle.dumps({"fold 1": {"loss": [2.0, 1.0]}, "fold 2": {"loss": [4.0, 3.0]}}))
    assert {metric.name for metric in nested.metrics} == {"fold 1/loss", "fold 2/loss"}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, width=32).map(np.float32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_pickle_itself_would_give_them(value: object, protocol: int) -> None:
    assert plain_value(pickle.dumps(value, protocol)) == value


class Runs:
    """When it is unpickled, this calls what it was given."""

    def __init__(self, call: object, *arguments: object) -> None:
        self._made_by = (call, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._made_by


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (os.system, ("touch {}",)),
        (builtins.exec, ("import os; os.mkdir({!r})",)),
        (subprocess.check_call, (["touch", "{}"],)),
        (os.mkdir, ("{}",)),
        (pickle.loads, (b"cos\nsystem\n(S'touch {}'\ntR.",)),
    ],
)
def test_a_pickle_that_wants_to_run_something_is_refused_and_nothing_is_run(
    tmp_path: Path, protocol: int, call: object, arguments: tuple[object, ...]
) -> None:
    target = tmp_path / "made"

    def aimed(argument: object) -> object:
        if isinstance(argument, bytes):
            return argument.replace(b"{}", str(target).encode())
        return (
            [aimed(part) for part in argument]
            if isinstance(argument, list)
            else str(argument).replace("{!r}", repr(str(target))).replace("{}", str(target))
        )

    evil = Runs(call, *map(aimed, arguments))
    file = tmp_path / "history.pkl"
    for content in ({"loss": [2.0, 1.0, evil]}, [evil, evil], {"loss": [3.0, 2.0], "x": {"y": evil}}):
        file.write_bytes(pickle.dumps(content, protocol))
        assert "is a pickle, and it holds" in refused(file)
        assert not target.exists()
    file.write_bytes(pickle.dumps({"loss": [1.0, evil]}, protocol))
    pickle.loads(file.read_bytes())
    assert target.exists(), "what was refused is nothing that would have run"


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(loss=[2.0, 1.0]),
        collections.defaultdict(list, loss=[2.0, 1.0]),
        {"loss": np.array([object()])},
        {"loss": {1.0, 2.0}},
        {"loss": [1j, 2j]},
        {"loss": [np.complex128(1)]},
        {"loss": [np.datetime64("2020-01-01")]},
        {(1, 2): [1.0, 2.0]},
        Path("x"),
        io.StringIO,
    ],
)
def test_anything_but_numbers_texts_lists_and_dictionaries_is_refused(tmp_path: Path, value: object) -> None:
    for protocol in PROTOCOLS:
        (tmp_path / "history.pkl").write_bytes(pickle.dumps([value, [1.0, 2.0]], protocol))
        if protocol > 1:
            assert "and it holds" in refused(tmp_path / "history.pkl")
        with pytest.raises(NotPlainError):
            plain_value((tmp_path / "history.pkl").read_bytes())


def test_an_object_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"loss": [1.0, 2.0], "model": Path("x")}))
    result = refused(tmp_path / "a.pkl")
    assert "it holds pathlib." in result
    assert "json.dump(history.history, file)" in result


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_pickle_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"loss": [1.0, 2.0, 3.0, 4.0]}, 2)[:cut])
    assert "damaged" in refused(tmp_path / "a.pkl") or cut < 3


def lists_of_lists(depth: int) -> bytes:
    """Each list holds the one before it a hundred times: 100 ** depth values in a few hundred bytes."""
    step = b"]q%c(" + b"h%c" * 100 + b"e"
    out = b"\x80\x02]q\x00(" + b"K\x01" * 100 + b"e"
    for n in range(depth):
        out += step.replace(b"%c", bytes([n + 1]), 1).replace(b"%c", bytes([n]))
    return out + b"."


ONE_MEGABYTE = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)
SCALAR = b"cnumpy.core.multiarray\nscalar\nq\x01cnumpy\ndtype\nX\x02\0\0\0f8K\0K\x01\x87Rq\x02"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [
        lists_of_lists(6),
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
        b"\x80\x02K\x01r" + b"\xff\xff\xff\x7f" + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x02](" + ONE_MEGABYTE + b"q\x00" + SCALAR + b"h\x01h\x02h\x00\x86R" * 100_000 + b"e.",
        b"\x80\x02](" + b"c_codecs\nencode\nq\x01" + ONE_MEGABYTE + b"q\x00" + b"h\x01h\x00\x85R" * 100_000 + b"e.",
        b"\x80\x02L" + b"9" * 10_000_000 + b"L\n.",
    ],
    ids=[
        "lists of lists",
        "a list in itself",
        "deep",
        "a far place",
        "a long text",
        "scalars",
        "encodings",
        "an integer",
    ],
)
def test_a_small_pickle_that_would_grow_without_end_is_refused_soon(tmp_path: Path, bomb: bytes) -> None:
    (tmp_path / "a.pkl").write_bytes(bomb)
    begin = process_time()
    assert read_or_refused(tmp_path / "a.pkl") is None
    assert process_time() - begin < 20


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x80\x02", b"\x80\x04", b"(dp0\n", b"}q\x00("]))
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes, head: bytes) -> None:
    with suppress(NotPlainError):
        plain_value(head + content)
    file = tmp_path_factory.mktemp("pickle") / "a.pkl"
    file.write_bytes(head + content)
    read_or_refused(file)


@given(st.data(), st.sampled_from(PROTOCOLS))
def test_a_history_with_changed_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, protocol: int
) -> None:
    kept = {"loss": [np.float32(1.5), 2.0], "acc": np.arange(3.0), "name": "x", "n": [1, 2]}
    content = bytearray(pickle.dumps(kept, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("pickle") / "a.pkl"
    file.write_bytes(bytes(content))
    read_or_refused(file)


def test_pickles_in_a_folder_are_read_and_a_checkpoint_among_them_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "history.pkl").write_bytes(pickle.dumps({"loss": [2.0, 1.0]}))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Path("x")))
    assert [Path(run.source).name for run in read(tmp_path)] == ["history.pkl"]
