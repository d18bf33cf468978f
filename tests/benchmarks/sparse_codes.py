"""How long it takes to describe 100,000 sparse codes of 2048 bits.

python tests/benchmarks/sparse_codes.py [--codes 100000] [--bits 2048] [--active 40] [--rounds 7]

Codes are random, as booleans and as the single-precision numbers that a model puts out. Each round is timed; the
fastest and the median are printed, and the processor's time, which does not depend on what else is running. The number
of patterns is compared with the true one: every fourth code is a copy.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from mlflow_stability.probes.representations.sparse_codes import QUANTITIES, describe_codes


def codes(count: int, bits: int, active: int) -> Tensor:
    dice = torch.Generator().manual_seed(0)
    on = torch.randint(bits, (count, active), generator=dice)
    found = torch.zeros(count, bits, dtype=torch.bool)
    found.scatter_(1, on, value=True)
    quarter = count // 4
    found[:quarter] = found[quarter : 2 * quarter]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codes", type=int, default=100_000)
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--active", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    bits = codes(options.codes, options.bits, options.active)
    numbers = bits.float()
    for name, given in (("booleans", lambda: bits), ("single precision", lambda: numbers > 0.5)):
        times, busy = [], []
        for _ in range(options.rounds):
            began, worked = time.perf_counter(), time.process_time()
            described = describe_codes(given())
            times.append(time.perf_counter() - began)
            busy.append(time.process_time() - worked)
        print(
            f"{name:18} fastest {min(times):.3f} s, median {statistics.median(times):.3f} s, "
            f"processor {min(busy):.3f} s ({torch.get_num_threads()} threads)"
        )
    for quantity, value in zip(QUANTITIES, described.tolist(), strict=True):
        print(f"{quantity:22} {value:,.4f}")
    truth = len({each.tobytes() for each in bits.numpy()}) / options.codes
    print(f"{'true unique ratio':22} {truth:,.4f}")


if __name__ == "__main__":
    main()
