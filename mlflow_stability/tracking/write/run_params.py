"""Writes facts into a run as its parameters, and leaves alone what is there.

In: facts by key, as long as they are. Out: parameters `stability.<key>`; where the run has another value already, the
tag `stability.recording_<n>.<key>`, for a parameter can be set once only and a tag stays to be read beside it.
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

PREFIX = "stability."
LONGEST = 6000
"""What MLflow's stores take since 2.8."""
LONGEST_BEFORE = 500
"""What older servers take."""
_CHOSEN = re.compile(
    r"(?:(?:optimizer|group)_\d+\.)*(?:optimizer|learning_rate|weight_decay|betas|momentum|clipping\..+)|optimizer_\d+"
    r"|scheduler|model|batch|accumulation|autocast|parameter_types|seed"
)
_USUAL = {"accumulation": "1", "parameter_types": "float32", "betas": "(0.9, 0.999)", "momentum": "0"}
"""What is not chosen by most, and said by its absence."""
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

    def write(self, facts: Mapping[str, str]) -> None:
        """Write facts; those that the run has already are passed over."""
        keys = self._keys(facts)
        wanted = {keys[name]: value for name, value in facts.items() if keys[name] not in self.refused}
        there = self._there()
        new = [Param(key, cut(value)) for key, value in wanted.items() if key not in there]
        for begin in range(0, len(new), AT_ONCE):
            self._send_all(new[begin : begin + AT_ONCE])
        self._put_beside({key: wanted[key] for key in wanted if key in there and not _same(there[key], wanted[key])})

    def _keys(self, names: Iterable[str]) -> dict[str, str]:
        """The parameter of each fact; so short that the tag beside it is one that stores take, too."""
        before = self._before()
        fitting = fitting_keys(before + name for name in names)
        return {name.removeprefix(before): PREFIX + key.removeprefix(before) for name, key in fitting.items()}

    def _before(self) -> str:
        return f"{PREFIX}recording_{self._number + 1}."

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
                    self._put_beside({param.key: param.value})
            elif len(param.value) > LONGEST_BEFORE:
                self._send_one(Param(param.key, cut(param.value, LONGEST_BEFORE)))
            else:
                self.refused[param.key] = str(error)

    def _put_beside(self, others: Mapping[str, str]) -> None:
        if not others:
            return
        tags = [RunTag(self._before() + key.removeprefix(PREFIX), cut(value, LONGEST)) for key, value in others.items()]
        for begin in range(0, len(tags), AT_ONCE):
            with store_trouble(f"set {len(tags)} tags"):
                self._client.log_batch(self._run_id, tags=tags[begin : begin + AT_ONCE], synchronous=True)

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


def is_chosen(key: str, value: str) -> bool:
    """Whether people choose it, so that runs are told apart by it; the rest is in `environment.json`."""
    return _CHOSEN.fullmatch(key) is not None and value != _USUAL.get(key.rpartition(".")[2])


def _same(there: str, value: str) -> bool:
    """Whether a value that the run has is this one, whole or as it was cut."""
    return there in (value, cut(value), cut(value, LONGEST_BEFORE))
