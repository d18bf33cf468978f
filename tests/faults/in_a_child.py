"""The tiny training in a child of `multiprocessing`, where Python runs no exit functions.

python in_a_child.py METHOD ENDING STEPS
"""

from __future__ import annotations

import multiprocessing
import sys

from train import main

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=main, args=(sys.argv[2], int(sys.argv[3]), 0.0))
    child.start()
    child.join()
