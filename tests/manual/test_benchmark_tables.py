"""Tables of benchmarks in the manual are between markers, and writing them changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.manual_tables import BLOCK, MANUAL, columns_of, write
from benchmarks.table import Table

PAGES = {page: page.read_text(encoding="utf-8") for page in sorted(MANUAL.glob("*.md"))}
BLOCKS = [pytest.param(match, id=match["name"]) for text in PAGES.values() for match in BLOCK.finditer(text)]
PAGE = """# Costs

Prose before.

<!-- benchmark: fast: b, c -->

| b |
| --- |
| old |

<!-- end -->

Prose between.

<!-- benchmark: fast 2 -->
<!-- end -->

<!-- benchmark: slow -->

| kept |

<!-- end -->

Prose after.
"""
RENEWED = """# Costs

Prose before.

<!-- benchmark: fast: b, c -->

| b | c |
| --- | --- |
| `x` | 2.5 |

One note. Measured today.

<!-- end -->

Prose between.

<!-- benchmark: fast 2 -->

| d |
| --- |
| y\\|z |

Measured today.

<!-- end -->

<!-- benchmark: slow -->

| kept |

<!-- end -->

Prose after.
"""


def test_the_manual_has_tables_of_benchmarks() -> None:
    assert {block.values[0]["name"] for block in BLOCKS} >= {"overhead", "peers", "step_calls"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_marker_has_its_end(page: Path) -> None:
    text = PAGES[page]
    blocks = len(list(BLOCK.finditer(text)))
    assert text.count("\n<!-- benchmark:") == text.count("\n<!-- end -->") == blocks


@pytest.mark.parametrize("block", BLOCKS)
def test_each_marker_names_a_benchmark_and_the_columns_below_it(block) -> None:
    assert block["name"] in BENCHMARKS
    header = block["content"].strip().splitlines()[0].strip("| ").split(" | ")
    assert columns_of(block) in ((), tuple(header))


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page, other = tmp_path / "costs.md", tmp_path / "limits.md"
    page.write_text(PAGE)
    other.write_text("<!-- benchmark: slow -->\n<!-- end -->\n")
    tables = {
        "fast": [Table("", ("a", "b", "c"), ((1, "`x`", 2.5),), ("One note.",)), Table("", ("d",), (("y|z",),))],
        "without a place": [Table("", ("a",), ())],
    }
    assert write(tables, "Measured today", tmp_path) == [page]
    assert page.read_text() == RENEWED
    assert write(tables, "Measured today", tmp_path) == [page]
    assert page.read_text() == RENEWED
    assert other.read_text() == "<!-- benchmark: slow -->\n<!-- end -->\n"
