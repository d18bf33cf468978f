"""Puts pictures into the charts of a run, where MLflow shows them with a slider over the steps.

In: a PNG file, a key, a step and the time at which it was measured. Out: MLflow's image, and which steps a key has.
Guarantees: the same picture is put there once, by however many couriers; the file is sent whole, for people open it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path, PurePosixPath

import mlflow
from mlflow import MlflowClient

from mlflow_stability.tracking.store.store_errors import store_trouble

_FOLDER = "images"
_UNFIT = re.compile(r"[^a-zA-Z0-9_\-.]")  # what MLflow takes, without what would be a folder or a section
_LONGEST = 90
"""Letters of a name: MLflow's files are named by key, step, time and a number of 36 letters, and have 255."""
# `<key>+step+<step>+timestamp+<milliseconds>+<uuid>+compressed.webp`, in older versions with % between them: the small
# picture, which MLflow sends last. https://github.com/mlflow/mlflow/issues/21085
# A / in a key is ~ there, in older versions #.
_FILE = re.compile(r"(?P<key>.+)[+%]step[+%](?P<step>\d+)[+%]timestamp[+%](?P<time>\d+)[+%][^+%]*[+%]compressed\.webp")


def image_key(section: str, what: str, number: int, name: str) -> str:
    """The key of a picture: `stability/attention/L00_blocks.0.attn`; unfit names are told apart by a short hash.

    The number stands first because MLflow cuts the title of a card after some twenty letters, and sorts cards by it.
    """
    fit = _UNFIT.sub("_", name)
    if fit != name or len(fit) > _LONGEST or not fit.strip("."):
        mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
        fit = f"{fit[: _LONGEST - len(mark) - 1]}-{mark}".lstrip(".")
    return f"{section}/{what}/L{number:02d}_{fit}"


class RunImages:
    """The pictures in the charts of one run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client
        self._there: set[tuple[str, int, int]] | None = None

    def steps(self, section: str) -> set[int]:
        """The steps for which there is a picture under a section: `stability/attention`."""
        return {step for key, step, _ in self._known() if key.startswith(f"{section}/")}

    def holds(self, key: str, step: int, time: float) -> bool:
        """Whether the picture of this moment is there."""
        return (key, step, round(time * 1000)) in self._known()

    def log(self, file: Path, key: str, step: int, time: float) -> None:
        """Put a picture there, unless it is there."""
        if self.holds(key, step, time):
            return
        milliseconds = round(time * 1000)
        with store_trouble(f"log the image {key}"):
            image = mlflow.Image(str(file))
            self._client.log_image(self.run_id, image, key=key, step=step, timestamp=milliseconds, synchronous=True)
        self._known().add((key, step, milliseconds))

    def _known(self) -> set[tuple[str, int, int]]:
        if self._there is None:
            with store_trouble(f"list the images of run {self.run_id}"):
                listed = self._client.list_artifacts(self.run_id, _FOLDER)
            names = (_FILE.fullmatch(PurePosixPath(each.path).name) for each in listed)
            self._there = {
                (re.sub("[~#]", "/", name["key"]), int(name["step"]), int(name["time"])) for name in names if name
            }
        return self._there
