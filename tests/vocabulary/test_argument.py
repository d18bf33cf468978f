from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass, field

import pytest

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import (
    check_arguments,
    check_fields,
    check_init_arguments,
    check_names,
    did_you_mean,
    member_of,
    number,
    one_of,
    or_list,
    short_repr,
    whole_number,
)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@check_arguments
def call(path: str, *, rollback: bool = False) -> tuple[str, bool]:
    """Take two arguments."""
    return path, rollback


@check_init_arguments
@dataclass(frozen=True)
class Knobs:
    every: int = field(default=3, metadata=whole_number(1))

    def __post_init__(self) -> None:
        check_fields(self)


def test_the_error_for_a_misspelt_argument_suggests_the_right_one() -> None:
    with pytest.raises(SettingsError) as raised:
        call("a", rolback=True)  # type: ignore[call-arg]
    assert str(raised.value) == "call() has no argument 'rolback'. Did you mean 'rollback'?"
    with pytest.raises(SettingsError, match=r"^Knobs\(\) has no argument 'evry'\. Did you mean 'every'\?$"):
        Knobs(evry=3)  # type: ignore[call-arg]


def test_the_error_for_an_unknown_argument_lists_the_existing_ones() -> None:
    with pytest.raises(SettingsError, match=r"no argument 'zzz'\. It has path and rollback\."):
        call("a", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"no argument 'zzz'\. It has every\.$"):
        Knobs(zzz=1)  # type: ignore[call-arg]


def test_a_call_with_known_names_is_otherwise_the_same() -> None:
    assert call("a", rollback=True) == ("a", True)
    assert list(inspect.signature(call).parameters) == ["path", "rollback"]
    assert call.__doc__ == "Take two arguments."
    with pytest.raises(TypeError, match="path"):
        call()  # type: ignore[call-arg]
    assert Knobs(every=4.0).every == 4  # type: ignore[arg-type]
    assert list(inspect.signature(Knobs).parameters) == ["every"]


def test_names_are_compared_without_regard_to_capitals() -> None:
    assert did_you_mean("Seed", ["seed"]) == " Did you mean 'seed'?"
    assert did_you_mean("loss", ["attention"]) == ""
    check_names("f()", {"a": 1}, ["a", "b"])


def test_a_limit_that_is_not_part_of_the_range_is_refused() -> None:
    share = number(above=0, at_most=1)["takes"]
    assert share.check("share", 1) == 1
    with pytest.raises(SettingsError, match="share must be a number, more than 0 and at most 1; got 0"):
        share.check("share", 0)
    assert number(at_least=0)["takes"].check("wait", float("inf")) == float("inf")


def test_one_and_true_are_not_the_same_choice() -> None:
    takes = one_of(True, False, "late")["takes"]
    assert takes.check("guard", "late") == "late"
    with pytest.raises(SettingsError, match="guard must be True, False or 'late'; got 1"):
        takes.check("guard", 1)


def test_a_member_of_an_enumeration_is_taken_by_its_name_too() -> None:
    takes = member_of(Level)["takes"]
    assert takes.check("level", Level.HIGH) is Level.HIGH
    assert takes.check("level", "high") is Level.HIGH
    with pytest.raises(SettingsError, match=r"level must be Level.LOW or Level.HIGH; got 2\.$"):
        takes.check("level", 2)


def test_a_long_value_is_shortened_and_one_without_a_repr_is_still_shown() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert short_repr("a" * 500).endswith("… (str)")
    assert short_repr(Broken()) == "an object (Broken)"
    assert short_repr(3) == "3"
    assert or_list(["a"]) == "a"
