from __future__ import annotations

from mlflow_stability.tracking.tag_names import is_recorded, last_step, process_end


def test_how_the_process_ended_is_read_from_new_and_old_runs() -> None:
    assert process_end({"stability.ended": "killed", "stability.outcome": "Loss rose."}) == ("killed", "")
    old = {"stability.outcome": "crashed", "stability.outcome_detail": "ValueError: no"}
    assert process_end(old) == ("crashed", "ValueError: no")
    assert process_end({"stability.outcome": "Loss rose."}) == ("", "")
    assert process_end({}) == ("", "")


def test_the_last_step_is_read_from_new_and_old_runs() -> None:
    assert last_step({"mlflow.stability.last_step": "7"}) == 7
    assert last_step({"stability.last_step": "6"}) == 6
    assert last_step({"stability.last_step": "many"}) == last_step({}) == 0


def test_a_run_of_ours_is_known_by_either_kind_of_tag() -> None:
    assert is_recorded({"mlflow.stability.last_step": "1"})
    assert is_recorded({"stability.outcome": "finished"})
    assert not is_recorded({"mlflow.runName": "stability"})
