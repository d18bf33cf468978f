from __future__ import annotations

import copy
import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flying import flying
from session.reachable import reachable_from
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from mlflow_stability import Options

LOOKED_AT = (0, 1, 10, 100, 200)
EVERYTHING: dict[str, Any] = {
    "rollback": True,
    "attention_every_n_steps": 10,
    "layers_every_n_steps": 10,
    "representations": "up",
    "options": Options(adaptive_clip=True, capture_batch=True),
    "stop_on": "loss>1000000",
}
TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


class Net(nn.Module):
    """Attention and more; looks at itself from within its pass."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(8, 1))
        self.looks: list[Any] | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)[:, None]
        output: Tensor = self.out(self.attention(hidden, hidden, hidden)[0][:, 0])
        if self.looks is not None:
            looks, self.looks = self.looks, None
            looks += reachable_from(self, x, output)
        return output


class Training:
    """A training with everything that a script may keep."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.looks: list[str] | None = None
        self.model = Net()
        self.average = AveragedModel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = LambdaLR(self.optimizer, self._rate)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        self.loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
        self.iterator = iter(self.loader)
        self.batch = next(self.iterator)
        self.loss = torch.zeros(())

    def _rate(self, _step: int) -> float:
        if self.looks is not None:  # in the middle of a call of the scheduler
            self.looks += self.reached()
        return 1.0

    def step(self, looks: list[str] | None = None) -> None:
        try:
            self.batch = next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            self.batch = next(self.iterator)
        self.optimizer.zero_grad()
        self.model.looks = looks
        output = self.model(self.batch[0])
        if looks is not None:
            looks += reachable_from(output, self.model)
        self.loss = (output - self.batch[1]).square().mean()
        self.scaler.scale(self.loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.looks = looks
        self.scheduler.step()
        self.looks = None
        self.average.update_parameters(self.model)

    def reached(self) -> list[str]:
        """What of this package can be reached from it."""
        return reachable_from(
            *(self.model, self.average, self.optimizer, self.scheduler, self.scaler),
            *(self.loader, self.iterator, self.batch, self.loss),
        )

    def traits(self) -> list[Any]:
        """Hook tables, attributes and methods of instances."""
        modules = [*self.model.modules(), *self.average.modules()]
        return [
            [[len(getattr(module, table)) for table in TABLES] for module in modules],
            [sorted(vars(module)) for module in modules],
            [sorted(vars(item)) for item in (self.optimizer, self.scheduler, self.scaler, self.loader, self.iterator)],
            [parameter._backward_hooks for parameter in (*self.model.parameters(), self.loss, *self.batch)],
        ]

    def bytes(self) -> dict[str, Any]:
        """What is saved of it."""
        saved = io.BytesIO()
        torch.save(self.average.state_dict(), saved)
        optimizer = io.BytesIO()
        torch.save(self.optimizer.state_dict(), optimizer)
        return {
            "state_dict": saved.getvalue(),
            "optimizer": optimizer.getvalue(),
            "repr": repr(self.model),
            "scheduler": pickle.dumps(self.scheduler.state_dict()),
        }


@pytest.mark.slow
def test_nothing_of_this_package_is_reachable_from_what_a_script_holds(tmp_path: Path) -> None:
    bare, expected = Training(), {}
    for step in range(max(LOOKED_AT) + 1):
        if step:
            bare.step()
        if step in LOOKED_AT:
            expected[step] = bare.traits()
    with flying(tmp_path, **EVERYTHING) as flown:
        training = Training()
        for step in range(max(LOOKED_AT) + 1):
            looks: list[str] = []
            if step:
                training.step(looks if step - 1 in LOOKED_AT else None)
            assert looks == [], step
            if step in LOOKED_AT:
                assert training.reached() == [], step
                assert training.traits() == expected[step], step
        assert flown.session.parts_off == {}


@pytest.mark.slow
def test_a_watched_training_saves_the_bytes_of_a_bare_one(tmp_path: Path) -> None:
    bare = Training()
    for _ in range(40):
        bare.step()
    with flying(tmp_path, **EVERYTHING | {"options": Options(capture_batch=True)}):  # which clips, as it is asked to
        watched = Training()
        for _ in range(40):
            watched.step()
        saved = watched.bytes()
    assert saved == bare.bytes()


def trained(model: nn.Module, steps: int = 12) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return model


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.up(x).tanh())
        return output


def plain() -> nn.Module:
    torch.manual_seed(0)
    return Plain()


def saved(model: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return buffer.getvalue()


def unmangled(graph: Any) -> str:
    """Without the numbers that torch gives to classes that it has met before in this process."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(graph))


def loaded_with_weights_only(model: nn.Module) -> list[str]:
    with torch.serialization.safe_globals([Plain, nn.Linear]):
        again = torch.load(io.BytesIO(saved(model)), weights_only=True)
    return [repr(again), *map(repr, again.state_dict().items())]


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    outcome: Any = torch.compile(model, backend="aot_eager")
    inner = copy.deepcopy(model)
    inner.compile(backend="eager", fullgraph=True)

    @torch.compile(backend="eager", fullgraph=True)
    def calls(x: Tensor) -> Tensor:
        result: Tensor = model(x) + 1
        return result

    for rows in (2, 2, 3, 5):
        for function in (outcome, inner, calls):
            function(torch.ones(rows, 4)).sum().backward()
    counters = torch._dynamo.utils.counters
    by_name = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break", "recompiles")}
    torch._dynamo.reset()
    return by_name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "observe",
    [
        saved,
        loaded_with_weights_only,
        lambda model: saved(pickle.loads(pickle.dumps(model))),  # storages are pickled by their address
        repr,
        lambda model: saved(copy.deepcopy(model)),
        lambda model: saved(torch.load(io.BytesIO(saved(model)), weights_only=False)),
        lambda model: unmangled(torch.jit.trace(model, torch.ones(2, 4)).inlined_graph),  # type: ignore[no-untyped-call]
        lambda model: unmangled(torch.jit.script(model).inlined_graph),  # type: ignore[union-attr]
        lambda model: str(torch.fx.symbolic_trace(model).graph),
        lambda model: str(torch.export.export(model, (torch.ones(2, 4),)).graph),
        compiled,
        lambda model: [parameter.is_shared() for parameter in model.share_memory().parameters()],
    ],
    ids=(
        *("save", "weights_only", "pickle", "repr", "deepcopy", "load"),
        *("jit.trace", "jit.script", "symbolic_trace", "export", "compile", "share_memory"),
    ),
)
def test_a_watched_model_gives_what_a_bare_one_gives(tmp_path: Path, observe: Any) -> None:
    bare = observe(trained(plain()))
    with flying(tmp_path, **EVERYTHING):
        watched = observe(trained(plain()))
    assert watched == bare
