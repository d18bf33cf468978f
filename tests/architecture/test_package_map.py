"""The table of sub-packages in the package's README says of each what its own first sentence says.

``python tests/architecture/test_package_map.py`` brings the table up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from architecture.repository import PACKAGE, tree_of

README = PACKAGE / "README.md"
HEAD = "| sub-package | what is in it |\n| --- | --- |\n"
MOST_TERMS = 20


def table() -> str:
    """A row for each sub-package of two levels, in the order of their names."""
    rows = []
    for path in sorted(PACKAGE.rglob("__init__.py")):
        name = path.parent.relative_to(PACKAGE).as_posix()
        if name != ".":
            rows.append(f"| `{name}/` | {(ast.get_docstring(tree_of(path)) or '').splitlines()[0]} |\n")
    return HEAD + "".join(rows)


def with_table(text: str) -> str:
    """The text with its table brought up to date."""
    return re.sub(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: table(), text)


def test_the_map_says_of_each_sub_package_what_it_says_of_itself() -> None:
    text = README.read_text(encoding="utf-8")
    assert HEAD in text
    assert with_table(text) == text, "python tests/architecture/test_package_map.py brings it up to date"


def test_every_path_that_the_map_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py|/))`", README.read_text(encoding="utf-8")))
    assert named
    assert [
        each for each in sorted(named) if not any((root / each).exists() for root in (PACKAGE, PACKAGE.parent))
    ] == []


def test_the_glossary_is_short() -> None:
    section = re.search(r"## Glossary\n(.*?)\n## ", README.read_text(encoding="utf-8"), re.DOTALL)
    assert section
    assert 10 <= section[1].count("\n- **") <= MOST_TERMS


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
