"""What goes into a loss function, read from the graph of the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.kinds.first_look.loss_function import Activation, LossFunction, LossInputFacts, LossSumFacts
from mlflow_stability.probes.first_look.first_look import FirstLook
from mlflow_stability.probes.first_look.loss_graph import loss_input, loss_sum
from mlflow_stability.vocabulary.result import Action, Finding, Severity

CLASSES = 6
LABELS = torch.randint(0, CLASSES, (4,), generator=torch.Generator().manual_seed(0))
SHARES = torch.full((4, CLASSES), 1 / CLASSES)


def outputs(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, CLASSES)), requires_grad=True)


def facts_of(loss: Tensor, *models: nn.Module) -> LossInputFacts | None:
    finding = loss_input(loss, models, 1)
    assert finding is None or isinstance(finding.facts, LossInputFacts)
    return None if finding is None else finding.facts


TWICE: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: functional.cross_entropy(outputs().softmax(1), LABELS),
    "with label smoothing": lambda: nn.CrossEntropyLoss(label_smoothing=0.1)(outputs().softmax(1), LABELS),
    "with weights": lambda: nn.CrossEntropyLoss(weight=torch.ones(CLASSES))(outputs().softmax(1), LABELS),
    "probabilities as targets": lambda: functional.cross_entropy(outputs().softmax(1), SHARES),
    "reshaped": lambda: functional.cross_entropy(outputs(2, 2, CLASSES).softmax(-1).view(-1, CLASSES), LABELS),
    "pixels": lambda: functional.cross_entropy(
        outputs(2, CLASSES, 3, 3).softmax(1), torch.zeros(2, 3, 3, dtype=torch.long)
    ),
    "one of two losses": lambda: (
        functional.cross_entropy(outputs(), LABELS) + 0.1 * functional.cross_entropy(outputs().softmax(1), LABELS)
    ),
    "divided": lambda: functional.cross_entropy(outputs().softmax(1), LABELS) / 4,
    "some rows": lambda: functional.cross_entropy(outputs(9, CLASSES).softmax(1)[torch.arange(4)], LABELS),
    "some rows by a mask": lambda: functional.cross_entropy(
        outputs(2, 3, CLASSES).softmax(2)[torch.tensor([[True, False, True]] * 2)], LABELS
    ),
    "the last position": lambda: functional.cross_entropy(outputs(4, 3, CLASSES).softmax(-1)[:, -1], LABELS),
    "exponential of log-probabilities": lambda: functional.cross_entropy(outputs().log_softmax(1).exp(), LABELS),
    "logarithm of some rows": lambda: functional.nll_loss(
        outputs(9, CLASSES).softmax(1).log_softmax(1)[torch.arange(4)], LABELS
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_softmax_before_cross_entropy_is_found(name: str) -> None:
    assert facts_of(TWICE[name]()) == LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX)


OTHER_INPUTS: dict[str, tuple[Callable[[], Tensor], LossFunction, Activation]] = {
    "relu": (
        lambda: functional.cross_entropy(outputs().relu(), LABELS),
        *(LossFunction.CROSS_ENTROPY, Activation.RELU),
    ),
    "tanh": (
        lambda: functional.cross_entropy(outputs().tanh(), LABELS),
        *(LossFunction.CROSS_ENTROPY, Activation.TANH),
    ),
    "logits into nll_loss": (
        lambda: functional.nll_loss(nn.Linear(CLASSES, CLASSES)(outputs()), LABELS),
        *(LossFunction.NLL, Activation.LINEAR),
    ),
    "log_softmax over the batch": (
        lambda: functional.nll_loss(outputs().log_softmax(0), LABELS),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "logarithm of a softmax over the batch": (
        lambda: functional.nll_loss(outputs().softmax(0).log(), LABELS),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "log_softmax over all nodes of a graph, and a mask": (
        lambda: functional.nll_loss(outputs(9, CLASSES).log_softmax(0)[torch.arange(9) < 4], LABELS),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "log_softmax over the sequence": (
        lambda: functional.nll_loss(outputs(2, 2, CLASSES).log_softmax(1).view(-1, CLASSES), LABELS),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "log_softmax over the batch, and an index": (
        lambda: -outputs().log_softmax(0)[torch.arange(4), LABELS].mean(),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "log_softmax over the sequence, and gather": (
        lambda: -outputs(2, 2, CLASSES).log_softmax(1).gather(-1, LABELS.view(2, 2, 1)).mean(),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "softmax over the batch, and the logarithm of what an index picks": (
        lambda: -(outputs().softmax(0)[torch.arange(4), LABELS] + 1e-8).log().mean(),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "softmax over the batch, and the logarithm of what gather picks": (
        lambda: -outputs().softmax(0).gather(1, LABELS[:, None]).squeeze(1).clamp(min=1e-8).log().mean(),
        *(LossFunction.NLL, Activation.LOG_SOFTMAX),
    ),
    "sigmoid twice": (
        lambda: functional.binary_cross_entropy(outputs().sigmoid().squeeze(1).sigmoid(), SHARES),
        *(LossFunction.SIGMOID, Activation.SIGMOID),
    ),
    "sigmoid of a relu": (
        lambda: functional.binary_cross_entropy(outputs().relu().sigmoid()[:, 0], SHARES[:, 0]),
        *(LossFunction.SIGMOID, Activation.RELU),
    ),
    "softmax into kl_div": (
        lambda: functional.kl_div(outputs().softmax(1), SHARES, reduction="batchmean"),
        *(LossFunction.KL, Activation.SOFTMAX),
    ),
    "softmax into kl_div for each row": (
        lambda: 2.0 * functional.kl_div(outputs().softmax(1), SHARES, reduction="none").sum(1).mean(),
        *(LossFunction.KL, Activation.SOFTMAX),
    ),
    "arguments of kl_div exchanged": (
        lambda: functional.kl_div(SHARES, outputs().log_softmax(1), reduction="batchmean") / 2,
        *(LossFunction.KL, Activation.LOG_TARGET),
    ),
    "cross entropy of one class": (
        lambda: functional.cross_entropy(outputs(4, 1), torch.zeros_like(LABELS)),
        *(LossFunction.CROSS_ENTROPY, Activation.ONE_VALUE),
    ),
    "overlap of one channel": (
        lambda: 1 - (2 * (outputs(4, 1, 3).softmax(1) * SHARES[:, None, :3]).sum((1, 2)) / 7).mean(),
        *(LossFunction.CROSS_ENTROPY, Activation.ONE_VALUE),
    ),
    "binary cross entropy of a softmax over one output": (
        lambda: functional.binary_cross_entropy(outputs(4, 1).softmax(1).squeeze(1), SHARES[:, 0]),
        *(LossFunction.CROSS_ENTROPY, Activation.ONE_VALUE),
    ),
    "rounded probabilities": (
        lambda: functional.binary_cross_entropy(outputs().sigmoid().round(), SHARES),
        *(LossFunction.OTHER, Activation.ROUNDED),
    ),
    "rounded answers": (
        lambda: functional.mse_loss(outputs().floor().squeeze(), SHARES),
        *(LossFunction.OTHER, Activation.ROUNDED),
    ),
    "logarithm of a softmax of probabilities": (
        lambda: functional.nll_loss((outputs().softmax(1).softmax(1) + 1e-8).log(), LABELS),
        *(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX),
    ),
}


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_other_inputs_that_a_loss_does_not_expect_are_found(name: str) -> None:
    make, function, activation = OTHER_INPUTS[name]
    assert facts_of(make()) == LossInputFacts(function, activation)


def test_advice_for_nll_loss_names_cross_entropy() -> None:
    finding = loss_input(functional.nll_loss(outputs().log_softmax(0), LABELS), (), 1)
    assert finding is not None
    assert finding.message == (
        "log_softmax is taken over another dimension than the classes, so that no row adds up to 1."
    )
    assert [remedy.sentence for remedy in finding.remedies] == [
        "Use cross_entropy on the logits; nll_loss needs log_softmax over the classes (dim=1) before it."
    ]


def test_advice_for_exchanged_arguments_of_kl_div_names_their_order() -> None:
    finding = loss_input(functional.kl_div(SHARES, outputs().log_softmax(1), reduction="sum"), (), 1)
    assert finding is not None
    assert finding.message == (
        "The target of kl_div is a log_softmax: the loss takes the logarithm of negative numbers, NaN. Input and "
        "target are exchanged, or log_target=True is missing."
    )
    assert [remedy.action for remedy in finding.remedies] == [Action.EXCHANGE_KL_ARGUMENTS]


def test_a_sigmoid_before_a_loss_with_logits_is_found() -> None:
    facts = facts_of(functional.binary_cross_entropy_with_logits(outputs().sigmoid(), SHARES))
    assert facts == LossInputFacts(LossFunction.BINARY_CROSS_ENTROPY, Activation.SIGMOID)


def test_probabilities_in_place_of_log_probabilities_are_found() -> None:
    facts = facts_of(functional.nll_loss(outputs().softmax(1), LABELS))
    assert facts == LossInputFacts(LossFunction.NLL, Activation.SOFTMAX)
    assert facts.sentence(1) == "The output of a softmax goes into nll_loss, which expects log-probabilities."


def test_a_softmax_in_half_precision_is_found() -> None:
    with torch.autocast("cpu"):
        loss = functional.cross_entropy(nn.Linear(CLASSES, CLASSES)(outputs()).softmax(1), LABELS)
    assert facts_of(loss) is not None


def test_the_module_is_named_where_there_is_one() -> None:
    model = nn.Sequential(nn.Linear(CLASSES, CLASSES), nn.Softmax(1))
    finding = loss_input(functional.cross_entropy(model(outputs()), LABELS), [model], 3)
    assert finding is not None
    assert (finding.severity, finding.step, finding.place) == (Severity.WARNING, 3, "1")
    assert finding.message == "Module 1 is a softmax, and its output goes into cross_entropy, which expects logits."
    several = nn.Sequential(nn.Softmax(1), *model)
    facts = facts_of(functional.cross_entropy(several(outputs()), LABELS), several)
    assert facts is not None
    assert facts.module == ""


RIGHT: dict[str, Callable[[], Tensor]] = {
    "logits": lambda: functional.cross_entropy(outputs(), LABELS),
    "log-probabilities into kl_div": lambda: functional.kl_div(outputs().log_softmax(1), SHARES, reduction="batchmean"),
    "divergence in the other direction": lambda: functional.kl_div(SHARES.log(), outputs().softmax(1), reduction="sum"),
    "divergence of logarithms": lambda: functional.kl_div(
        SHARES.log(), outputs().log_softmax(1), reduction="batchmean", log_target=True
    ),
    "expected error": lambda: (1 - SHARES * outputs().softmax(1)).mean(),
    "one pair": lambda: functional.cross_entropy(outputs(1, 1), LABELS[:1] * 0),
    "attention to one position": lambda: (outputs(4, 1, 1).softmax(-1) @ outputs(4, 1, 3)).square().mean(),
    "capped logits": lambda: functional.cross_entropy(outputs().tanh() * 30, LABELS),
    "log-probabilities over the last dimension": lambda: functional.nll_loss(outputs().log_softmax(-1), LABELS),
    "a bounded answer": lambda: functional.binary_cross_entropy_with_logits(outputs().tanh(), SHARES),
    "logarithm of probabilities": lambda: functional.nll_loss(outputs().softmax(1).log(), LABELS),
    "logarithm of what an index picks": lambda: -outputs().softmax(1)[torch.arange(4), LABELS].log().mean(),
    "what an index picks of a softmax over the batch": lambda: -outputs().softmax(0)[torch.arange(4), LABELS].mean(),
    "log-probabilities": lambda: functional.nll_loss(outputs().log_softmax(1), LABELS),
    "log-probabilities again": lambda: functional.cross_entropy(outputs().log_softmax(1), LABELS),
    "scaled sigmoid": lambda: functional.cross_entropy(outputs().sigmoid() * 5, LABELS),
    "attention before a layer": lambda: functional.cross_entropy(
        outputs().softmax(1) @ torch.ones(CLASSES, CLASSES), LABELS
    ),
    "binary": lambda: functional.binary_cross_entropy(outputs().sigmoid(), SHARES),
    "binary, of a gated layer": lambda: functional.binary_cross_entropy(
        (outputs() * outputs().sigmoid()).sigmoid(), SHARES
    ),
    "some rows of logits": lambda: functional.cross_entropy(outputs(9, CLASSES)[torch.arange(4)], LABELS),
    "divergence": lambda: functional.kl_div(outputs().log_softmax(1), SHARES, reduction="batchmean"),
    "squared error of probabilities": lambda: functional.mse_loss(outputs().softmax(1), SHARES),
    "some rows of log-probabilities": lambda: functional.nll_loss(
        outputs(9, CLASSES).log_softmax(1)[torch.arange(9) < 4], LABELS
    ),
    "some classes of log-probabilities": lambda: functional.nll_loss(
        outputs(9, 4).log_softmax(0).t()[:, torch.arange(CLASSES)], LABELS
    ),
    "rounded with the gradient of its input": lambda: functional.mse_loss(
        (given := outputs()) + (given.round() - given).detach(), SHARES
    ),
    "exponential of logits": lambda: functional.cross_entropy(outputs().exp(), LABELS),
    "a number": lambda: outputs().sum(),
    "log-probabilities of a sequence": lambda: functional.nll_loss(
        outputs(2, 2, CLASSES).log_softmax(-1).view(-1, CLASSES), LABELS
    ),
    "log-probabilities of pixels": lambda: functional.nll_loss(
        outputs(2, CLASSES, 3).log_softmax(1), torch.zeros(2, 3, dtype=torch.long)
    ),
    "an index": lambda: -outputs().log_softmax(1)[torch.arange(4), LABELS].mean(),
    "gather": lambda: -outputs(2, 2, CLASSES).log_softmax(-1).gather(2, LABELS.view(2, 2, 1)).mean(),
    "classes in columns": lambda: -outputs(CLASSES, 4).log_softmax(0)[LABELS, torch.arange(4)].mean(),
    "gather of positions, for soft targets": lambda: (
        -(outputs(2, 5, CLASSES).log_softmax(-1).gather(1, torch.zeros(2, 3, CLASSES, dtype=torch.long)) * 0.1).sum()
    ),
    "gather from columns of pairs": lambda: -outputs(4, 4).log_softmax(0).gather(1, torch.arange(4).view(4, 1)).mean(),
    "pairs in both directions": lambda: -outputs(4, 4).log_softmax(0)[torch.arange(4), torch.arange(4)].mean(),
    "probabilities inside the model": lambda: nn.Linear(CLASSES, 1)(outputs().softmax(1).log_softmax(1)).sum(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_inputs_that_a_loss_function_expects_are_not_reported(name: str) -> None:
    assert facts_of(RIGHT[name]()) is None


def test_a_loss_without_a_graph_says_nothing() -> None:
    assert facts_of(torch.tensor(1.0)) is None


def test_each_kind_of_mistake_in_the_first_losses_is_reported_once() -> None:
    findings: list[Finding] = []
    switched: list[bool] = []
    look = FirstLook(findings.append, tuple, lambda: 2, switched.append)
    look.at_loss(RIGHT["logits"]())
    look.at_loss([None, torch.tensor(1.0)])
    assert (findings, switched) == ([], [])
    look.at_loss([RIGHT["logits"](), TWICE["softmax"]()])
    look.at_loss(TWICE["softmax"]())
    assert ([finding.kind for finding in findings], switched) == (["loss_input"], [])


def test_losses_are_checked_in_the_first_ten_steps() -> None:
    switched: list[bool] = []
    step = 1
    look = FirstLook(lambda _: None, tuple, lambda: step, switched.append)
    step = 2
    look.at_loss(RIGHT["logits"]())
    step = 10
    look.at_loss(RIGHT["logits"]())
    assert switched == []
    step = 11
    look.at_loss(RIGHT["logits"]())
    assert switched == [False]


def test_the_first_losses_of_a_resumed_training_are_checked() -> None:
    findings: list[Finding] = []
    switched: list[bool] = []
    step = 500
    look = FirstLook(findings.append, tuple, lambda: step, switched.append)
    assert [due for due in range(495, 530) if look.due(due)] == [*range(500, 511), 519, 520]
    step = 501
    look.at_loss(TWICE["softmax"]())
    assert ([finding.kind for finding in findings], switched) == (["loss_input"], [])
    step = 509
    look.at_loss(RIGHT["logits"]())
    assert switched == []
    step = 510
    look.at_loss(RIGHT["logits"]())
    assert switched == [False]


def ctc(inputs: Tensor) -> Tensor:
    targets, lengths = torch.tensor([[1, 2], [2, 3]]), torch.tensor([9, 9])
    return functional.ctc_loss(inputs, targets, lengths, torch.tensor([2, 2]))


def test_ctc_takes_log_probabilities() -> None:
    layer = nn.Linear(5, CLASSES)
    scores = layer(torch.randn(9, 2, 5))
    assert facts_of(ctc(scores)) == LossInputFacts(LossFunction.CTC, Activation.LINEAR)
    assert facts_of(ctc(layer(torch.randn(2, 9, 5)).transpose(0, 1))) is not None
    assert facts_of(ctc(layer(torch.randn(2, 5, 9).transpose(1, 2)).transpose(0, 1))) is not None
    assert facts_of(ctc(scores.softmax(-1))) == LossInputFacts(LossFunction.CTC, Activation.SOFTMAX)
    assert facts_of(ctc(scores.log_softmax(-1))) is None
    finding = loss_input(ctc(scores), (), 1)
    assert finding is not None
    assert [remedy.action for remedy in finding.remedies] == [Action.TAKE_LOG_SOFTMAX]


SUMS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "cross entropy": (lambda: functional.cross_entropy(outputs(16, CLASSES), LABELS.repeat(4), reduction="sum"), 16),
    "pixels": (
        lambda: functional.cross_entropy(
            outputs(2, CLASSES, 3, 3), torch.zeros(2, 3, 3, dtype=torch.long), reduction="sum"
        ),
        18,
    ),
    "squares": (lambda: functional.mse_loss(outputs(), SHARES, reduction="sum"), 4 * CLASSES),
    "squares by hand": (lambda: (outputs() - SHARES).pow(2).sum(), 4 * CLASSES),
    "absolute differences": (lambda: functional.l1_loss(outputs(), SHARES, reduction="sum"), 4 * CLASSES),
    "each example": (lambda: functional.mse_loss(outputs(), SHARES, reduction="none").sum(), 4 * CLASSES),
    "one of two terms": (
        lambda: functional.mse_loss(outputs(), SHARES, reduction="sum") + outputs().mean(),
        4 * CLASSES,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_loss_that_is_a_sum_is_found_with_its_number_of_values(name: str) -> None:
    make, values = SUMS[name]
    finding = loss_sum(make(), 1)
    assert finding is not None
    assert (finding.severity, finding.facts) == (Severity.INFO, LossSumFacts(values))


@pytest.mark.parametrize(
    "make",
    [
        lambda: functional.mse_loss(outputs(), SHARES),
        lambda: functional.mse_loss(outputs(), SHARES, reduction="sum") / 4,
        lambda: functional.cross_entropy(outputs(), LABELS, reduction="sum"),
        lambda: torch.stack([functional.mse_loss(outputs(), SHARES) for _ in range(9)]).sum(),
    ],
    ids=["a mean", "divided", "four values", "nine losses"],
)
def test_other_losses_are_no_sums_over_a_batch(make: Callable[[], Tensor]) -> None:
    assert loss_sum(make(), 1) is None
