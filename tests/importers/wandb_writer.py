"""Writes W&B's file of a run, as its `wandb-core` does, and the small recording beside the tests.

`python tests/importers/wandb_writer.py` records `samples/run-small.wandb` again with W&B itself, offline; it needs
`pip install wandb`, which no test does.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

SAMPLE = Path(__file__).parent / "samples" / "run-small.wandb"
BLOCK = 32_768
IDENTITY = b":W&B\xe1\xbe\x00"


def varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes | int | float) -> bytes:
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def history(step: int, values: Mapping[str, str]) -> bytes:
    """A record of one call of `wandb.log`; values are JSON."""
    items = b"".join(field(1, field(1, name.encode()) + field(16, value.encode())) for name, value in values.items())
    return field(2, items + field(2, field(1, step)))


def config(values: Mapping[str, str]) -> bytes:
    items = b"".join(field(1, field(1, name.encode()) + field(16, value.encode())) for name, value in values.items())
    return field(5, items)


def printed(line: str) -> bytes:
    return field(13, field(1, 1) + field(3, line.encode()))


def ended(code: int) -> bytes:
    return field(18, field(1, code) if code else b"")


def axis(name: str, glob: str = "*") -> bytes:
    """A record of `wandb.define_metric(glob, step_metric=name)`."""
    return field(12, field(2, glob.encode()) + field(4, name.encode()))


def wandb_file(records: Iterable[bytes]) -> bytes:
    out = bytearray(IDENTITY)
    for record in records:
        rest, begun = record, False
        while rest or not begun:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                room = BLOCK
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (3 if rest else 4) if begun else (2 if rest else 1)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            begun = True
    return bytes(out)


def record_sample() -> None:
    import wandb  # type: ignore[import-not-found]

    os.environ["WANDB_SILENT"] = "true"
    with TemporaryDirectory() as folder:
        settings = wandb.Settings(
            x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True, disable_git=True, host="host"
        )
        wandb.init(
            mode="offline",
            project="project",
            name="a small run",
            id="small",
            config={"lr": 0.1, "model": {"width": 8}},
            dir=folder,
            settings=settings,
        )
        for step in range(12):
            loss = {7: float("nan"), 8: float("inf")}.get(step, 6 / (step + 1))
            values = {"train/loss": loss, "lr": 1e-3, "sample": "text"}
            wandb.log(values | ({"val": {"loss": 3 / (step + 1)}} if step % 4 == 3 else {}))
        wandb.log({"late": 1.0}, step=20)
        wandb.finish(exit_code=0)
        (made,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
        SAMPLE.parent.mkdir(exist_ok=True)
        shutil.copyfile(made, SAMPLE)


if __name__ == "__main__":
    record_sample()
