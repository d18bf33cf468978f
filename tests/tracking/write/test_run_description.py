from __future__ import annotations

from mlflow_stability.tracking.run_writer import (
    END,
    HEADING,
    LONGEST_DESCRIPTION,
    description_summary,
    with_summary,
)


def test_an_empty_description_becomes_the_section() -> None:
    summary = description_summary("running", ["step 3"])
    assert with_summary("", summary) == summary
    assert summary == f"{HEADING}running\n\nstep 3\n\n{END}"


def test_what_the_user_wrote_stays_before_and_behind_it() -> None:
    first = with_summary("My run.", description_summary("running", ["step 3"]))
    assert first.startswith("My run.\n\n### ")
    edited = f"# Title\n\n{first}\n\n## Notes\n\nTry again."
    after = with_summary(edited, description_summary("broken", ["NaN"]))
    assert after == f"# Title\n\nMy run.\n\n{description_summary('broken', ['NaN'])}\n\n## Notes\n\nTry again."


def test_the_same_section_again_changes_nothing() -> None:
    text = with_summary("Mine.", description_summary("healthy", ["300 steps"]))
    assert with_summary(text, description_summary("healthy", ["300 steps"])) == text


def test_the_section_gives_way_where_there_is_no_room_for_both() -> None:
    summary = description_summary("broken", ["verdict", "cause " * 200, "links"])
    mine = "x" * (LONGEST_DESCRIPTION - 200)
    result = with_summary(mine, summary)
    assert result.startswith(mine)
    assert "verdict" in result
    assert "cause" not in result
    assert result.endswith(END)
    assert len(result) <= LONGEST_DESCRIPTION
    assert with_summary("x" * LONGEST_DESCRIPTION, summary) == "x" * LONGEST_DESCRIPTION
