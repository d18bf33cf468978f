"""Writes the golden files again, and prints what has changed in them.

python tests/golden/remake.py [GROUP ...]

Look at each row of the table before you commit: it is a change of what users read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import golden_file
from golden.cases import GROUPS
from golden.difference_table import differences, table


def main() -> None:
    """Remake the groups that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all where none is given")
    groups = parser.parse_args().groups or list(GROUPS)
    if unknown := [group for group in groups if group not in GROUPS]:
        parser.error(f"no such group: {', '.join(unknown)}")
    for group in groups:
        before, after = golden_file.read(group), GROUPS[group]()
        golden_file.write(group, after)
        if before:
            print(table(differences(before, after)) or f"{group}: no difference")
        else:
            print(f"{group}: new, {len(after)} cases")


if __name__ == "__main__":
    main()
