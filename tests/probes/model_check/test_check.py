from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from mlflow_stability import check
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.result import ModelCheck, ModelFinding, Severity

CLASSES = 10


def net(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(dtype)


def batch() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(64, 32, generator=dice), torch.randint(CLASSES, (64,), generator=dice)


def named(checked: ModelCheck) -> list[str]:
    return [finding.check for finding in checked.findings]


def only_finding(checked: ModelCheck, name: str) -> ModelFinding:
    (finding,) = [finding for finding in checked.findings if finding.check == name]
    return finding


def test_a_healthy_model_has_no_findings_and_its_numbers_equal_those_of_torch() -> None:
    model = net()
    checked = check(model, batch(), optimizer=AdamW(model.parameters()))
    assert (checked.findings, checked.not_checked) == ((), ())
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    assert checked.loss == pytest.approx(loss.item())
    assert checked.chance == pytest.approx(math.log(CLASSES))
    assert checked.grad_norm == pytest.approx(
        nn.utils.get_total_norm([item.grad for item in model.parameters()]).item()
    )
    for layer, parameter in zip(checked.layers, model.parameters(), strict=True):
        assert layer.grad_norm == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
        assert layer.rms == pytest.approx(parameter.detach().square().mean().sqrt().item(), rel=1e-5)
        assert layer.largest == pytest.approx(parameter.detach().abs().max().item())
    assert checked.verdict == "Sequential: nothing is wrong."


def test_what_each_module_puts_out_is_described() -> None:
    model = net()
    checked = check(model, batch())
    hidden = model[:2](batch()[0]).detach()
    assert [activation.name for activation in checked.activations] == ["0", "1", "2", "3", "4", "Sequential"]
    rectified = checked.activations[1]
    assert rectified.mean == pytest.approx(hidden.mean().item(), rel=1e-4)
    assert rectified.std == pytest.approx(hidden.std().item(), rel=1e-3)
    assert (rectified.min, rectified.max) == (0.0, pytest.approx(hidden.max().item()))
    assert rectified.zero_share == pytest.approx((hidden == 0).float().mean().item())
    assert rectified.nonfinite_share == 0.0
    assert check(model).activations == ()


def test_without_batch_and_optimizer_the_result_lists_what_was_not_checked() -> None:
    not_checked = check(net()).not_checked
    assert [text.partition(":")[0] for text in not_checked] == ["Without optimizer=", "Without a batch"]


def break_values(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight[3, 4], model[2].bias[0] = math.nan, math.inf


def enlarge(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[2].weight *= 10


def shrink(model: nn.Sequential) -> None:
    with torch.no_grad():
        for item in model[::2]:
            item.weight *= 0.01


def flip_a_bit(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.view(torch.int32)[0, 0] ^= 1 << 30


def make_equal(model: nn.Sequential) -> None:
    nn.init.constant_(model[2].weight, 0.1)


def empty(model: nn.Sequential) -> None:
    for item in model[::2]:
        nn.init.zeros_(item.weight)


def freeze(model: nn.Sequential) -> None:
    model.requires_grad_(False)


@pytest.mark.parametrize(
    ("spoil", "name", "severity", "place"),
    [
        (break_values, "nonfinite_parameters", Severity.CRITICAL, "0.weight"),
        (enlarge, "huge_weights", Severity.WARNING, "2.weight"),
        (flip_a_bit, "huge_values", Severity.WARNING, "0.weight"),
        (shrink, "tiny_weights", Severity.WARNING, None),
        (make_equal, "equal_units", Severity.WARNING, "2"),
        (empty, "zero_weights", Severity.WARNING, "0.weight"),
        (freeze, "nothing_trainable", Severity.WARNING, ""),
    ],
)
def test_values_that_no_training_begins_with_are_found(
    spoil: Any, name: str, severity: Severity, place: str | None
) -> None:
    model = net()
    spoil(model)
    result = only_finding(check(model), name)
    assert (result.severity, bool(result.remedies)) == (severity, True)
    assert place is None or result.place == place


def test_weights_that_are_nearly_zero_are_not_called_zero() -> None:
    model = net()
    nn.init.constant_(model[0].weight, 1e-13)
    assert (
        only_finding(check(model), "zero_weights").message == "1 weight matrix has values of 1e-13 at most: 0.weight."
    )
    nn.init.zeros_(model[0].weight)
    assert only_finding(check(model), "zero_weights").message == "1 weight matrix has zeros alone: 0.weight."


def test_no_usual_initialisation_is_reported() -> None:
    ways = (nn.init.xavier_normal_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.kaiming_uniform_)
    for way in (*ways, lambda item: nn.init.normal_(item, std=0.02)):
        model = net()
        for item in model[::2]:
            way(item.weight)
        assert check(model).findings == ()


def test_a_branch_or_an_adapter_that_begins_as_nothing_is_a_remark() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(32, CLASSES)
            self.a, self.b = nn.Linear(32, 4, bias=False), nn.Linear(4, CLASSES, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.base(x) + self.b(self.a(x))
            return out

    checked = check(Adapter(), batch())
    assert checked.severity is Severity.INFO
    assert "learn once b.weight has left zero" in only_finding(checked, "zero_gradients").message


def test_buffers_that_are_not_finite_are_found_and_masks_are_not() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model.register_buffer("causal", torch.full((8, 8), -math.inf).triu(1))
    assert check(model).findings == ()
    model[1].running_var[2] = math.nan
    assert only_finding(check(model), "nonfinite_buffers").place == "1.running_var"


def test_what_the_optimizer_lacks_has_twice_or_has_of_another_model_is_found() -> None:
    model, other = net(), net()
    checked = check(model, optimizer=[SGD([*model[:2].parameters(), *other[2].parameters()], lr=0.1)])
    assert named(checked) == ["not_in_optimizer", "not_in_model"]
    assert "4 parameters are in no optimizer" in checked.findings[0].message
    twice = check(model, optimizer=[SGD(model.parameters(), lr=0.1), SGD(model[0].parameters(), lr=0.1)])
    assert named(twice) == ["in_two_optimizers"]


def test_an_epsilon_of_adam_that_is_zero_in_half_precision_is_found_and_makes_nan() -> None:
    model = net(dtype=torch.float16)
    optimizer = Adam(model.parameters())
    assert only_finding(check(model, optimizer=optimizer), "optimizer_eps").evidence == {"eps": 1e-8}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert not model[0].weight.isfinite().any()
    for fitting in (net(dtype=torch.bfloat16), net()):
        assert check(fitting, optimizer=Adam(fitting.parameters())).findings == ()


def test_dead_units_and_what_they_keep_from_learning_are_found() -> None:
    model = net()
    with torch.no_grad():
        model[2].bias -= 10
    checked = check(model, batch())
    assert only_finding(checked, "dead_units").place == "3"
    assert "0.weight, 2.weight" in only_finding(checked, "zero_gradients").message


def test_saturated_units_and_vanishing_gradients_are_found() -> None:
    torch.manual_seed(0)
    deep = nn.Sequential(*(item for _ in range(12) for item in (nn.Linear(32, 32), nn.Sigmoid())), nn.Linear(32, 2))
    result = only_finding(check(deep, (batch()[0], batch()[1] % 2)), "vanishing_gradients")
    assert result.place == "0.weight"
    with torch.no_grad():
        deep[0].weight *= 1000
    assert only_finding(check(deep, (batch()[0], batch()[1] % 2)), "saturated_units").place == "1"


def test_gradients_of_a_loss_of_zero_have_not_vanished() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(23 * torch.eye(2))
        model.bias.zero_()
    checked = check(model, (torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.tensor([0, 1])))
    assert checked.loss == 0.0
    assert checked.grad_norm is not None
    assert checked.grad_norm > 0
    assert "vanishing_gradients" not in named(checked)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_other_types_are_measured(dtype: torch.dtype) -> None:
    model, inputs = net(dtype=dtype), batch()[0].to(dtype)
    checked = check(model, (inputs, batch()[1]))
    assert checked.grad_norm == pytest.approx(
        math.hypot(*(layer.grad_norm for layer in check(net(), batch()).layers if layer.grad_norm is not None)), rel=0.1
    )


def test_a_part_that_the_loss_does_not_depend_on_is_unused() -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(32, CLASSES), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    result = only_finding(check(Forgets(), batch()), "unused")
    assert result.message == "The loss does not depend on 2 parameters: forgotten.weight, forgotten.bias."


def test_a_loss_worse_than_chance_and_one_from_leaked_labels_are_reported() -> None:
    model = net()
    with torch.no_grad():
        model[-1].weight *= 100
    result = only_finding(check(model, batch()), "loss_above_chance")
    assert result.severity is Severity.WARNING
    assert "the loss of chance for 10 classes: worse than guessing" in result.message
    leak = (nn.functional.one_hot(batch()[1], 32) * 50.0, batch()[1])
    knows = nn.Sequential(nn.Identity(), nn.Linear(32, CLASSES, bias=False))
    nn.init.eye_(knows[1].weight)
    assert only_finding(check(knows, leak), "loss_below_chance").severity is Severity.INFO


def test_exploding_and_broken_gradients_are_found() -> None:
    model = nn.Linear(32, 1)
    targets = torch.randn(64, 1, generator=torch.Generator().manual_seed(2))
    assert only_finding(check(model, (batch()[0], targets * 1e5)), "exploding_gradients").place == "weight"

    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.way = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            moved = self.way(x)
            return (moved - moved.detach()).square().sum(-1).sqrt().mean()

    checked = check(Distance(), batch()[0])
    assert checked.loss == 0.0
    assert only_finding(checked, "nonfinite_gradients").severity is Severity.CRITICAL


def test_the_first_module_with_a_nan_is_named_and_not_what_follows_from_it() -> None:
    inputs, targets = batch()
    inputs[0, 0] = math.nan
    checked = check(net(), (inputs, targets))
    assert named(checked) == ["nonfinite_activations", "nonfinite_loss"]
    assert checked.findings[0].place == "0"


def test_a_batch_that_does_not_fit_is_a_finding_with_its_module() -> None:
    result = only_finding(check(net(), (torch.randn(4, 31), torch.zeros(4).long())), "batch_failed")
    assert (result.severity, result.place) == (Severity.CRITICAL, "0")
    assert "mat1 and mat2 shapes cannot be multiplied" in result.message
    lost = only_finding(check(net(), (batch()[0], batch()[1] + 5)), "batch_failed")
    assert "It was raised by the loss." in lost.message


@pytest.mark.parametrize(
    ("loss", "chance"),
    [
        (nn.CrossEntropyLoss(), math.log(CLASSES)),
        (nn.functional.cross_entropy, math.log(CLASSES)),
        (nn.CrossEntropyLoss(reduction="none"), None),
        (lambda output, targets: (output.sum(1) - targets).abs().mean(), None),
    ],
)
def test_a_loss_of_ones_own_is_taken(loss: Any, chance: float | None) -> None:
    checked = check(net(), batch(), loss=loss)
    assert checked.loss is not None
    assert checked.chance == (pytest.approx(chance) if chance else None)


def test_mappings_and_losses_of_the_models_own_are_taken() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.net(inputs)
            return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}

    inputs, labels = batch()
    checked = check(Own(), {"inputs": inputs, "labels": labels})
    assert checked.chance == pytest.approx(math.log(CLASSES))
    assert checked.findings == ()


def test_without_a_loss_that_is_beyond_doubt_gradients_are_not_checked() -> None:
    checked = check(net(), batch()[0])
    assert checked.loss is None
    assert "no loss is known for this output; give loss=" in checked.not_checked[-1]


@pytest.mark.slow
def test_a_compiled_model_and_one_without_values_are_taken() -> None:
    assert check(torch.compile(net()), batch()).loss == check(net(), batch()).loss
    with torch.device("meta"):
        empty_model = net()
    not_checked = check(empty_model, batch()).not_checked
    assert any("have no values yet" in text for text in not_checked)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": 3}, "model must be a torch.nn.Module; got 3"),
        ({"model": nn.Linear(2, 2), "optimizer": [3]}, "optimizer must be a torch optimizer"),
        ({"model": nn.Linear(2, 2), "optimiser": None}, "optimizer"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises((SettingsError, TypeError), match=expected.replace("(", r"\(")):
        check(**arguments)
