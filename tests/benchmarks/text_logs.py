"""How long a printed log takes to read, a line: `python tests/benchmarks/text_logs.py [LINES]`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from mlflow_stability.importers.open_log import read

ROUNDS = 5


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    with tempfile.TemporaryDirectory() as room:
        log = Path(room, "train.log")
        log.write_text("".join(f"step {n}/{lines} | loss {2 + n % 7 / 10:.4f} | lr 3.00e-04\n" for n in range(lines)))
        taken = []
        for _ in range(ROUNDS):
            began = time.process_time()
            read(log)
            taken.append(time.process_time() - began)
    print(f"{1e6 * median(taken) / lines:.2f} us of CPU a line (median of {ROUNDS})")


if __name__ == "__main__":
    main()
