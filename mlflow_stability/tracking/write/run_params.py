"""Writes facts into a run as its parameters, and leaves alone what is there.

In: facts by key, as long as they are. Out: parameters `stability.<key>`; where the run has another value already, as a
run that was resumed with other settings has, one line in the tag `stability.changed_settings`, for a parameter can be
set once only.
Guarantees: nothing of anybody's is written over; sending the same again changes nothing; a long value is cut in its
middle to what the store takes, and says how long it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mlflow import MlflowClient
from mlflow.entities import Param, RunTag

from mlflow_stability.tracking.keys import fitting_keys
from mlflow_stability.tracking.store.store_errors import RefusedError, store_trouble
from mlflow_stability.tracking.tag_names import CHANGED_SETTINGS

PREFIX = "stability."
LONGEST = 6000
"""What MLflow's stores take since 2.8."""
LONGEST_BEFORE = 500
"""What older servers take."""
_CHOSEN = re.compile(
    r"(?:(?:optimizer|group)_\d+\.)*(?:optimizer|learning_rate|weight_decay|betas|momentum|clipping\..+)|optimizer_\d+"
    r"|(?:trial|job)(?:_\w+)?\..+|scheduler|model|batch|accumulation|autocast|parameter_types|seed"
)
_USUAL = {"accumulation": "1", "parameter_types": "float32", "betas": "(0.9, 0.999)", "momentum": "0"}
"""What is not chosen by most, and said by its absence."""
LONGEST_TAG = 5000
LONGEST_SHOWN = 100
"""Of a value that was changed."""
AT_ONCE = 100
"""What MLflow's stores take in one request."""


class RunParams:
    """The parameters of one run, as one of its recordings writes them."""

    def __init__(self, client: MlflowClient, run_id: str, number: int) -> None:
        self.refused: dict[str, str] = {}
        """What the store would not take, and why."""
        self._client = client
        self._run_id = run_id
        self._number = number
        self._changed: dict[str, str] = {}
        """What this recording has set otherwise than the run: by key, in words."""

    def write(self, facts: Mapping[str, str]) -> None:
        """Write facts; those that the run has already are passed over."""
        keys = self._keys(facts)
        wanted = {keys[name]: value for name, value in facts.items() if keys[name] not in self.refused}
        there = self._there()
        new = [Param(key, cut(value)) for key, value in wanted.items() if key not in there]
        for begin in range(0, len(new), AT_ONCE):
            self._send_all(new[begin : begin + AT_ONCE])
        others = {key: value for key, value in wanted.items() if key in there and not _same(there[key], value)}
        self._say_changed({key: (there[key], value) for key, value in others.items()})

    def _keys(self, names: Iterable[str]) -> dict[str, str]:
        """The parameter of each fact."""
        fitting = fitting_keys(PREFIX + name for name in names)
        return {name.removeprefix(PREFIX): key for name, key in fitting.items()}

    def _send_all(self, params: list[Param]) -> None:
        """Send params together; where that is refused, each by itself."""
        try:
            self._send(params)
        except RefusedError:
            for each in params:
                self._send_one(each)

    def _send_one(self, param: Param) -> None:
        try:
            self._send([param])
        except RefusedError as error:
            there = self._there()
            if param.key in there:  # somebody else was faster
                if not _same(there[param.key], param.value):
                    self._say_changed({param.key: (there[param.key], param.value)})
            elif len(param.value) > LONGEST_BEFORE:
                self._send_one(Param(param.key, cut(param.value, LONGEST_BEFORE)))
            else:
                self.refused[param.key] = str(error)

    def _say_changed(self, changes: Mapping[str, tuple[str, str]]) -> None:
        """Tell of parameters that have another value than the run: ``recording 2: seed 2 (was 1)``."""
        if not changes:
            return
        for key, (before, value) in changes.items():
            self._changed[key] = f"{key.removeprefix(PREFIX)} {_in_a_line(value)} (was {_in_a_line(before)})"
        ours = f"recording {self._number + 1}: "
        with store_trouble(f"read run {self._run_id}"):
            said = self._client.get_run(self._run_id).data.tags.get(CHANGED_SETTINGS, "")
        lines = [line for line in said.splitlines() if not line.startswith(ours)]
        text = "\n".join([*lines, ours + ", ".join(self._changed.values())])
        with store_trouble("set a tag"):
            tag = RunTag(CHANGED_SETTINGS, cut(text, LONGEST_TAG))
            self._client.log_batch(self._run_id, tags=[tag], synchronous=True)

    def _send(self, params: list[Param]) -> None:
        with store_trouble(f"log {len(params)} parameters"):
            self._client.log_batch(self._run_id, params=params, synchronous=True)

    def _there(self) -> dict[str, str]:
        with store_trouble(f"read run {self._run_id}"):
            return dict(self._client.get_run(self._run_id).data.params)


def cut(text: str, longest: int = LONGEST) -> str:
    """A text that fits: what is too much goes from its middle, which says so."""
    if len(text) <= longest:
        return text
    mark = f" …({len(text):,} characters)… "
    room = longest - len(mark)
    return text[: room - room // 2] + mark + text[len(text) - room // 2 :]


def _in_a_line(value: str) -> str:
    return cut(" ".join(value.split()), LONGEST_SHOWN)


def is_chosen(key: str, value: str) -> bool:
    """Whether people choose it, so that runs are told apart by it; the rest is in `environment.json`."""
    return _CHOSEN.fullmatch(key) is not None and value != _USUAL.get(key.rpartition(".")[2])


def _same(there: str, value: str) -> bool:
    """Whether a value that the run has is this one, whole or as it was cut."""
    return there in (value, cut(value), cut(value, LONGEST_BEFORE))
