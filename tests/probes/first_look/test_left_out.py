"""Parameters that no step changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mlflow_stability.kinds.first_look.not_trained import (
    Holder,
    NoGradientFacts,
    NotFrozenFacts,
    NotOptimizedFacts,
    Reached,
    UnregisteredFacts,
)
from mlflow_stability.probes.first_look.first_look import FirstLook
from mlflow_stability.probes.first_look.left_out import LeftOut, not_frozen
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.probe import StepView
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Severity


class Net(nn.Module):
    """A model with a body, a head and whatever else it is given."""

    def __init__(self, **more: object) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor, *extra: Callable[[Tensor], Tensor]) -> Tensor:
        x = self.body(x)
        for apply in extra:
            x = apply(x)
        out: Tensor = self.head(x)
        return out


def looked_at(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *extra: Callable[[Tensor], Tensor],
    living: Sequence[Optimizer] = (),
    between: Callable[[], object] = lambda: None,
) -> list[Facts]:
    look = LeftOut()
    facts = []
    for step in (10, 20):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.ones(3, 4), *extra).sum().backward()
        facts = [finding.facts for finding in look.look([model], optimizers, step, lambda: living)]
        between()
    return facts


def sgd(tensors: Sequence[Tensor] | nn.Module) -> list[Optimizer]:
    return [torch.optim.SGD(tensors.parameters() if isinstance(tensors, nn.Module) else tensors, lr=0.1)]


def test_modules_in_a_list_are_named_by_their_attribute() -> None:
    blocks = [nn.Linear(4, 4) for _ in range(3)]
    model = Net(blocks=blocks)
    assert looked_at(model, sgd(model), *blocks) == [UnregisteredFacts(Holder.LIST, "blocks", "0", "2", 6, 60)]


def test_modules_in_a_dict_and_tensors_that_are_no_parameters_are_found() -> None:
    blocks = {"up": nn.Linear(4, 4)}
    model = Net(blocks=blocks)
    assert looked_at(model, sgd(model), blocks["up"]) == [UnregisteredFacts(Holder.DICT, "blocks", "up", "up", 2, 20)]
    scale = torch.ones(4, requires_grad=True)
    model = Net(scale=scale)
    assert looked_at(model, sgd(model), scale.mul) == [UnregisteredFacts(Holder.ATTRIBUTE, "scale", "", "", 1, 4)]


def test_an_attribute_that_is_made_of_a_parameter_is_no_parameter() -> None:
    for weight in (nn.Parameter(torch.ones(4, 1)).t(), nn.Parameter(torch.ones(1, 4)) * 0.5):
        model = Net(scale=weight)
        result = looked_at(model, sgd(model), lambda x, weight=weight: x * weight.detach() + 0 * x)
        assert result == []  # without a gradient
    weight = nn.Parameter(torch.ones(4, 1)).t()
    model = Net(scale=weight)
    assert looked_at(model, sgd(model), weight.mul) == [UnregisteredFacts(Holder.ATTRIBUTE, "scale", "", "", 1, 4)]
    made_of_own = Net()
    made_of_own.__dict__["scale"] = made_of_own.body.bias.view(1, 4)
    assert looked_at(made_of_own, sgd(made_of_own), made_of_own.__dict__["scale"].mul) == []


def test_a_list_whose_modules_are_registered_or_optimized_or_unused_is_not_reported() -> None:
    unused = Net(blocks=[nn.Linear(4, 4)])
    assert looked_at(unused, sgd(unused)) == []
    blocks = [nn.Linear(4, 4)]
    model = Net(blocks=blocks)
    assert looked_at(model, sgd([*model.parameters(), *blocks[0].parameters()]), *blocks) == []
    assert looked_at(model, sgd(model), *blocks, living=sgd(blocks[0])) == []
    model.add_module("block", blocks[0])
    assert looked_at(model, sgd(model), *blocks) == []


def test_parameters_that_the_script_updates_itself_are_not_reported() -> None:
    block = nn.Linear(4, 4)
    model = Net(blocks=[block])

    def update() -> None:
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.sub_(0.1)

    assert looked_at(model, sgd(model), block, between=update) == []


def test_parameters_that_an_optimizer_lacks_are_named_by_their_modules() -> None:
    model = Net()
    assert looked_at(model, sgd(model.body)) == [NotOptimizedFacts(2, 10 / 30, ("head",))]


def test_a_model_with_only_a_small_trained_part_is_not_reported() -> None:
    model = Net()
    assert looked_at(model, sgd(model.head)) == []


def test_modules_in_evaluation_mode_and_frozen_parameters_are_not_reported() -> None:
    model = Net()
    model.head.eval()
    assert looked_at(model, sgd(model.body)) == []
    model.head.train().requires_grad_(False)
    assert looked_at(model, sgd(model.body)) == []


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_parameters_that_never_had_a_gradient_are_found(kind: type[torch.optim.SGD | torch.optim.Adam]) -> None:
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)
    look = LeftOut()
    for _ in range(2):
        model.head(model.body(torch.ones(3, 4)).detach()).sum().backward()
        look.note_gradients(optimizer)
        optimizer.step()
    finding = look.without_gradient([model], [optimizer], 100, 100)
    assert finding is not None
    assert finding.facts == NoGradientFacts(2, 20 / 30, ("body",), 100)
    assert (
        finding.message
        == "2 parameters of body (67% of the values) are in the optimizer and had no gradient in 100 steps."
    )


def test_a_single_parameter_is_one() -> None:
    assert NotOptimizedFacts(1, 0.03, ("head",)).sentence(20) == (
        "1 parameter of head (3% of the values) has a gradient and is in no optimizer: no step changes its values."
    )
    assert "(3% of the values) is in the optimizer and had" in NoGradientFacts(1, 0.03, ("head",), 9).sentence(20)


@pytest.mark.parametrize(("unused", "is_mentioned"), [(nn.Linear(2, 2), True), (nn.Linear(1, 1, bias=False), False)])
def test_a_small_part_without_a_gradient_is_information_from_one_percent_on(
    unused: nn.Module, is_mentioned: bool
) -> None:
    model = Net(unused=unused)
    if not is_mentioned:
        model.body = nn.Linear(4, 40)
        model.head = nn.Linear(40, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = LeftOut()
    model(torch.ones(3, 4)).sum().backward()
    look.note_gradients(optimizer)
    finding = look.without_gradient([model], [optimizer], 100, 100)
    assert (None if finding is None else finding.severity) == (Severity.INFO if is_mentioned else None)


@pytest.mark.parametrize(
    ("width", "called", "severity"),
    [(4, False, Severity.INFO), (4, True, Severity.WARNING), (40, False, Severity.WARNING)],
)
def test_a_part_of_the_model_that_is_never_called_is_a_warning_only_where_it_is_most_of_it(
    width: int, called: bool, severity: Severity
) -> None:
    model = Net(optional=nn.Linear(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = LeftOut()
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        look.note_gradients(optimizer)
        look.watch_calls([model])
    if called:
        with torch.no_grad():
            model.optional(torch.ones(3, 4))
    finding = look.without_gradient([model], [optimizer], 100, 100)
    look.close()
    assert finding is not None
    assert finding.severity is severity
    assert finding.message.endswith("100 steps." if called else "100 steps, as no module of theirs was called.")
    # Models of other tests may wait for the garbage collector.
    assert MODULE_CALLS.keys().isdisjoint(map(id, model.modules()))


def test_a_part_with_an_earlier_gradient_is_not_reported() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = LeftOut()
    model(torch.ones(3, 4)).sum().backward()
    look.note_gradients(optimizer)
    optimizer.zero_grad()
    assert look.without_gradient([model], [optimizer], 100, 100) is None


def test_an_optimizer_of_another_model_is_found_where_nothing_writes_to_it() -> None:
    model, other = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    look = LeftOut()
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        look.note_gradients(optimizer)
        optimizer.step()
    finding = look.without_gradient([model], [optimizer], 100, 100)
    assert finding is not None
    assert isinstance(finding.facts, NoGradientFacts)
    assert (finding.facts.tensors, finding.facts.share) == (2, 1.0)
    assert finding.remedies[0].action is Action.MAKE_OPTIMIZER_OF_MODEL


@pytest.mark.parametrize(
    ("mistake", "reached", "action"),
    [
        ("detached", Reached.NONE, Action.LOOK_FOR_DETACH),
        ("other model", Reached.OTHERS, Action.MAKE_OPTIMIZER_OF_MODEL),
        ("cleared", Reached.THEM, Action.CALL_ZERO_GRAD_BEFORE_BACKWARD),
    ],
)
def test_the_graph_of_the_loss_shows_why_an_optimizer_has_no_gradient(
    mistake: str, reached: Reached, action: Action
) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD((nn.Linear(4, 1) if mistake == "other model" else model).parameters(), lr=0.1)
    look = LeftOut()
    for _ in range(2):
        out = model(torch.ones(3, 4))
        loss = (out.detach().requires_grad_() if mistake == "detached" else out).sum()
        if look.may_be_known:
            look.note_loss(loss)
        loss.backward()
        if mistake == "cleared":
            optimizer.zero_grad()
        look.note_gradients(optimizer)
        optimizer.step()
    finding = look.without_gradient([model], [optimizer], 10, 10, only_all=True)
    assert finding is not None
    assert isinstance(finding.facts, NoGradientFacts)
    assert finding.facts.reached is reached
    assert finding.message.endswith(f"had no gradient in 10 steps: {reached}.")
    assert [remedy.action for remedy in finding.remedies] == [action]


def test_a_schedule_that_is_tried_without_a_training_is_no_mistake_and_a_missing_backward_pass_is() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    look = LeftOut()
    for _ in range(100):
        look.note_gradients(optimizer)
        optimizer.step()
    assert look.without_gradient([], [optimizer], 100, 100) is None
    finding = look.without_gradient([model], [optimizer], 100, 100)  # its forward pass was called
    assert finding is not None
    assert finding.severity is Severity.WARNING


def test_a_loss_that_is_a_new_tensor_depends_on_no_parameter() -> None:
    model, result, step = nn.Linear(4, 1), list[Finding](), 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = FirstLook(result.append, lambda: [model], lambda: step, lambda _: None)
    for step in range(1, 11):
        loss = torch.tensor(model(torch.ones(3, 4)).sum().item(), requires_grad=True)
        look.at_loss(loss)
        loss.backward()
        look.before_step(StepView(optimizer, step, Layers()))
        optimizer.step()
    look.close()
    (finding,) = result
    assert isinstance(finding.facts, NoGradientFacts)
    assert (finding.facts.reached, finding.facts.steps) == (Reached.NONE, 10)


def test_a_training_without_gradients_is_not_reported() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = LeftOut()
    look.note_gradients(optimizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    assert look.without_gradient([model], [optimizer], 100, 100) is None


class Freezing(nn.Linear):
    """A layer whose class knows the name."""

    def freeze(self) -> None:
        self.weight.requires_grad = self.requires_grad = False


def frozen(model: nn.Module, *, steps: bool = True) -> Facts | None:
    model(torch.ones(3, 4)).sum().backward()
    finding = not_frozen([model], sgd(model) if steps else [], 10)
    assert finding is None or finding.severity is Severity.WARNING
    return None if finding is None else finding.facts


def test_an_attribute_that_freezes_nothing_is_found() -> None:
    model = Net()
    model.body.requires_grad = False  # type: ignore[assignment]
    assert frozen(model) == NotFrozenFacts("body", "requires_grad", 2)
    assert NotFrozenFacts("body", "requires_grad", 2).sentence(10) == (
        "body.requires_grad = False freezes nothing: PyTorch reads requires_grad of parameters alone. 2 parameters of "
        "it are trained."
    )
    other = Net()
    other.head.weight.require_grad = False  # type: ignore[attr-defined]
    assert frozen(other) == NotFrozenFacts("head.weight", "require_grad", 1)


def test_frozen_parts_and_attributes_of_a_class_are_not_reported() -> None:
    model, untrained = Net().requires_grad_(True), Net()
    model.body.requires_grad_(False)
    model.body.requires_grad = False  # type: ignore[assignment]
    untrained.body.requires_grad = False  # type: ignore[assignment]
    own = nn.Sequential(Freezing(4, 4), nn.Linear(4, 2))
    own[0].requires_grad = False  # type: ignore[assignment]
    assert [frozen(model), frozen(untrained, steps=False), frozen(own)] == [None, None, None]
