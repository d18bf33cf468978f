from __future__ import annotations

from mlflow_stability.tracking.write.run_description import END, HEADING, LONGEST, section_of, with_section


def test_an_empty_description_becomes_the_section() -> None:
    section = section_of("running", ["step 3"])
    assert with_section("", section) == section
    assert section == f"{HEADING}running\n\nstep 3\n\n{END}"


def test_what_the_user_wrote_stays_before_and_behind_it() -> None:
    first = with_section("My run.", section_of("running", ["step 3"]))
    assert first.startswith("My run.\n\n### ")
    edited = f"# Title\n\n{first}\n\n## Notes\n\nTry again."
    after = with_section(edited, section_of("broken", ["NaN"]))
    assert after == f"# Title\n\nMy run.\n\n{section_of('broken', ['NaN'])}\n\n## Notes\n\nTry again."


def test_the_same_section_again_changes_nothing() -> None:
    text = with_section("Mine.", section_of("healthy", ["300 steps"]))
    assert with_section(text, section_of("healthy", ["300 steps"])) == text


def test_the_section_gives_way_where_there_is_no_room_for_both() -> None:
    section = section_of("broken", ["verdict", "cause " * 200, "links"])
    mine = "x" * (LONGEST - 200)
    found = with_section(mine, section)
    assert found.startswith(mine)
    assert "verdict" in found
    assert "cause" not in found
    assert found.endswith(END)
    assert len(found) <= LONGEST
    assert with_section("x" * LONGEST, section) == "x" * LONGEST
