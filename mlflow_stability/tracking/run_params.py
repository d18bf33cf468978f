"""Write facts into a run as its parameters `stability.<key>`, without changing any that is there.

A parameter can be set once only. Where a resumed run has another value, the tag `stability.changed_settings` gets a
line. Guarantees: sending the same again changes nothing; a long value is cut in its middle to what the store takes, and
shows how long it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Param, RunTag

from mlflow_stability.tracking.client import RefusedError, store_trouble
from mlflow_stability.tracking.keys import fitting_keys
from mlflow_stability.tracking.tag_names import CHANGED_SETTINGS, PREFIX

LONGEST = 6000  # what MLflow's stores take since 2.8
LONGEST_BEFORE = 500  # what older servers take
LONGEST_TAG = 5000
LONGEST_CHANGE = 100  # length to which a changed value is cut in the tag
PARAMS_AT_ONCE = 100  # what MLflow's stores take in one request
_CHOSEN = re.compile(
    r"(?:(?:optimizer|group)_\d+\.)*(?:optimizer|learning_rate|weight_decay|betas|momentum|clipping\..+)|optimizer_\d+"
    r"|(?:trial|job)(?:_\w+)?\..+|scheduler|model|batch|accumulation|autocast|parameter_types|seed"
)
_DEFAULTS = {"accumulation": "1", "parameter_types": "float32", "betas": "(0.9, 0.999)", "momentum": "0"}
"""Values that are left out."""


class RunParams:
    """The parameters of one run, as one of its recordings writes them."""

    def __init__(self, client: MlflowClient, run_id: str, number: int) -> None:
        self.refused: dict[str, str] = {}  # what the store refused, and why
        self._client = client
        self._run_id = run_id
        self._number = number
        self._changed: dict[str, str] = {}  # changes of this recording by key, in words

    def write(self, facts: Mapping[str, str]) -> None:
        """Write facts that the run does not have."""
        key_of = fitting_keys(PREFIX + name for name in facts)
        params = {key_of[PREFIX + name]: value for name, value in facts.items()}
        params = {key: value for key, value in params.items() if key not in self.refused}
        existing = self._existing()
        new = [Param(key, cut(value)) for key, value in params.items() if key not in existing]
        for begin in range(0, len(new), PARAMS_AT_ONCE):
            self._send_all(new[begin : begin + PARAMS_AT_ONCE])
        self._report_changes(
            {
                key: (existing[key], value)
                for key, value in params.items()
                if key in existing and not _is_same(existing[key], value)
            }
        )

    def _send_all(self, params: list[Param]) -> None:
        """Send params together; if that is refused, each by itself."""
        try:
            self._send(params)
        except RefusedError:
            for param in params:
                self._send_one(param)

    def _send_one(self, param: Param) -> None:
        try:
            self._send([param])
        except RefusedError as error:
            existing = self._existing()
            if param.key in existing:  # another process was faster
                if not _is_same(existing[param.key], param.value):
                    self._report_changes({param.key: (existing[param.key], param.value)})
            elif len(param.value) > LONGEST_BEFORE:
                self._send_one(Param(param.key, cut(param.value, LONGEST_BEFORE)))
            else:
                self.refused[param.key] = str(error)

    def _report_changes(self, changes: Mapping[str, tuple[str, str]]) -> None:
        """Add changed values to this recording's line of the tag: ``recording 2: seed 2 (was 1)``."""
        if not changes:
            return
        for key, (before, value) in changes.items():
            self._changed[key] = f"{key.removeprefix(PREFIX)} {_in_a_line(value)} (was {_in_a_line(before)})"
        start = f"recording {self._number + 1}: "
        with store_trouble(f"read run {self._run_id}"):
            text = self._client.get_run(self._run_id).data.tags.get(CHANGED_SETTINGS, "")
        others = [line for line in text.splitlines() if not line.startswith(start)]
        text = "\n".join([*others, start + ", ".join(self._changed.values())])
        with store_trouble("set a tag"):
            tag = RunTag(CHANGED_SETTINGS, cut(text, LONGEST_TAG))
            self._client.log_batch(self._run_id, tags=[tag], synchronous=True)

    def _send(self, params: list[Param]) -> None:
        with store_trouble(f"log {len(params)} parameters"):
            self._client.log_batch(self._run_id, params=params, synchronous=True)

    def _existing(self) -> dict[str, str]:
        with store_trouble(f"read run {self._run_id}"):
            return dict(self._client.get_run(self._run_id).data.params)


def cut(text: str, longest: int = LONGEST) -> str:
    """Return a text that fits: what is too much is replaced in its middle by its length."""
    if len(text) <= longest:
        return text
    mark = f" …({len(text):,} characters)… "
    room = longest - len(mark)
    return text[: room - room // 2] + mark + text[len(text) - room // 2 :]


def _in_a_line(value: str) -> str:
    return cut(" ".join(value.split()), LONGEST_CHANGE)


def is_chosen(key: str, value: str) -> bool:
    """Return whether people choose it, so that runs differ by it; the rest is in `environment.json`."""
    return _CHOSEN.fullmatch(key) is not None and value != _DEFAULTS.get(key.rpartition(".")[2])


def _is_same(existing: str, value: str) -> bool:
    """Return whether a value of the run is this one, whole or as it was cut."""
    return existing in (value, cut(value), cut(value, LONGEST_BEFORE))
