"""Whatever symbol this torch lacks: the training goes on as it is, and what is off without it is reported once."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import mlflow_stability
from mlflow_stability.probes.hooks import torch_api

pytestmark = pytest.mark.scenario
STEPS = 12
AT_IMPORT = ("TorchDispatchMode", "profile_hook_step", "current_dispatch_mode", "DispatchKey")
"""What classes are made of, or is asked for, when our modules are imported: hidden before that."""


@pytest.fixture(autouse=True)
def apart(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "journal"))
    torch_api.forget()
    yield
    mlflow_stability.autolog(disable=True)
    torch_api.forget()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 12), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x)[:, None].chunk(3, -1)
        output: Tensor = self.out(scaled_dot_product_attention(q, k, v))
        return output


@cache
def bare() -> list[Tensor]:
    return trained()


def trained() -> list[Tensor]:
    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(2, 3, 4) * (float("nan") if step == 6 else 1.0)
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step != 6:
            optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def hide(name: str) -> None:
    """As in a torch that has it not: from us, for torch itself would not ask for it there."""
    symbol = torch_api.SYMBOLS[name]
    torch_api.SYMBOLS[name] = replace(symbol, where=symbol.where + "_that_is_gone")
    torch_api.forget()


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_api.SYMBOLS)
def test_the_training_continues(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = bare()
    monkeypatch.setitem(torch_api.SYMBOLS, name, torch_api.SYMBOLS[name])
    hide(name)
    where, loaded = torch_api.SYMBOLS[name].where, torch_api.SYMBOLS[name].where.partition(":")[0] in sys.modules
    with caplog.at_level(logging.WARNING, logger="mlflow_stability"):
        mlflow_stability.autolog(
            strict=True,
            offline=True,  # nothing is read from the run: a courier for each costs more than the test
            layers_every_n_steps=5,
            attention_every_n_steps=5,
            rollback=mlflow_stability.RollbackPolicy(),
        )
        session = mlflow_stability.current_session()
        assert session is not None
        watched = trained()
    if name != "backward":  # without it no backward pass is seen at all
        assert session.step >= STEPS - 1
    assert all(torch.equal(first, other) for first, other in zip(expected, watched, strict=True))
    result = [record.getMessage() for record in caplog.records if where in record.getMessage()]
    assert len(result) == loaded
    assert all("Switched off without it: " in text for text in result)
    assert not any("TorchLacksError" in record.getMessage() for record in caplog.records)


SCRIPT = """
import sys
from dataclasses import replace
from mlflow_stability.probes.hooks import torch_api

for name in sys.argv[1:]:
    torch_api.SYMBOLS[name] = replace(torch_api.SYMBOLS[name], where="torch:gone_" + name)
import torch, mlflow_stability
mlflow_stability.autolog(offline=True, layers_every_n_steps=5, attention_every_n_steps=5)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert mlflow_stability.current_session().step == 11 + 1
"""


@pytest.mark.slow
def test_what_our_modules_are_made_of_may_be_missing_when_they_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *AT_IMPORT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Switched off without it: ") == 1, done.stderr


@pytest.mark.parametrize("name", [symbol for symbol in torch_api.SYMBOLS if symbol.startswith("foreach_")])
def test_the_replacement_of_a_missing_symbol_computes_the_same(name: str) -> None:
    torch.manual_seed(1)
    kind = name.removeprefix("foreach_")
    few = [torch.rand(3), torch.rand(2, 2)]
    others = [torch.rand(3), torch.rand(2, 2)]
    given: tuple[object, ...] = {
        "addcdiv_": (others, few, 0.5),
        "addcmul_": (others, few, 0.5),
        "clamp_min_": ([0.5, 0.25],),
        "lerp_": (others, 0.3),
        "norm": (2.0, torch.float64),
        "div_": (2.0,),
        "add_": (1e-8,),
        "mul_": (others,),
        "mul": (0.5,),
        **dict.fromkeys(("copy_", "maximum_", "minimum", "sub_"), (others,)),
    }.get(kind, ())
    mine, theirs = [tensor.clone() for tensor in few], [tensor.clone() for tensor in few]
    of_torch = getattr(torch, f"_foreach_{kind}")(theirs, *given)
    instead = torch_api.SYMBOLS[name].instead(mine, *given)
    assert all(map(torch.equal, mine, theirs))
    if not kind.endswith("_"):
        assert all(torch.allclose(first, other) for first, other in zip(instead, of_torch, strict=True))
