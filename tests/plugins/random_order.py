"""Runs the tests in random order: `pytest --random-order`, or `--random-order=SEED` for an order seen before.

Files are shuffled, and the tests within each; those of one file stay together, as what they share does. The seed is
printed at the end. With `-n`, every worker gets the same one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

UNSEEDED = -1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order",
        nargs="?",
        type=int,
        const=UNSEEDED,
        metavar="SEED",
        help="run files, and the tests within each, in random order; the seed is printed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.random_order == UNSEEDED:  # a worker is started with the same arguments, and told the seed
        told = getattr(config, "workerinput", {}).get("random_order")
        config.option.random_order = random.SystemRandom().randrange(1_000_000) if told is None else told


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["random_order"] = node.config.option.random_order


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.random_order is not None:
        terminalreporter.line(f"The order was that of --random-order={config.option.random_order}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.random_order is None:
        return
    order = random.Random(config.option.random_order)
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    names = sorted(files)
    order.shuffle(names)
    for name in names:
        order.shuffle(files[name])
    items[:] = [item for name in names for item in files[name]]
