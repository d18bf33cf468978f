from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from probes.looked_into import Row, blocks_of, looked_into, unguarded
from torch import Tensor, nn

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.inside.representation_probe import (
    RepresentationProbe,
    describe_rows,
    ranks_by_eigenvalues,
    ranks_by_resolvents,
)

WORDS, BITS, ACTIVE = 40, 256, 10


class Winners(nn.Module):
    """The largest values of each row are on; the gradient is passed straight through."""

    def forward(self, x: Tensor) -> Tensor:
        hard = (x >= x.topk(ACTIVE, -1).values[..., -1:]).to(x)
        soft = torch.sigmoid(x)
        return (hard - soft).detach() + soft


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values, self.winners = nn.Linear(16, BITS), Winners()
        self.log_temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.winners(self.values(x))


class Speaker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.encoder = nn.Embedding(WORDS, 16), Encoder()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(BITS, WORDS)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.drop(self.encoder(self.words(given))))


def looks(model: nn.Module, *names: str, given: Tensor | None = None) -> Row:
    probe = RepresentationProbe(unguarded, names)
    given = torch.arange(WORDS).repeat(8).view(4, -1) if given is None else given
    looked_into(probe, model, given)
    return looked_into(probe, model, given)[1]


def test_sparse_codes_are_found_among_all_modules_and_measured_once() -> None:
    row = looks(Speaker())
    assert {name.partition("@")[2] for name in row} == {"encoder.winners"}
    assert row["sdr_active_bits@encoder.winners"] == ACTIVE
    assert row["sdr_width@encoder.winners"] == BITS
    assert row["sdr_rows@encoder.winners"] == 8 * WORDS


def test_of_modules_with_the_same_output_the_named_one_is_reported() -> None:
    assert {name.partition("@")[2] for name in looks(Speaker(), "encoder")} == {"encoder"}


def test_codes_are_counted_beside_how_many_inputs_differ() -> None:
    row = looks(Speaker())
    assert row["sdr_input_ratio@encoder.winners"] == 1 / 8
    assert row["sdr_unique_ratio@encoder.winners"] == 1 / 8


def test_the_share_of_inputs_comes_before_what_is_judged_by_it() -> None:
    names = [name.partition("@")[0] for name in looks(Speaker())]
    assert names.index("sdr_input_ratio") < names.index("sdr_unique_ratio")


def test_the_temperature_is_found_next_to_the_codes_and_converted_from_its_logarithm() -> None:
    model = Speaker()
    assert looks(model)["sdr_temperature@encoder.winners"] == pytest.approx(math.exp(0.5))
    model.encoder.winners.temperature = 0.25
    assert looks(model)["sdr_temperature@encoder.winners"] == 0.25
    model.encoder.winners.temperature = nn.Parameter(torch.tensor([3.0]))
    assert looks(model)["sdr_temperature@encoder.winners"] == 3.0


class Puts(nn.Module):
    """Puts out whatever it was given, beside its input."""

    def __init__(self, made: Tensor) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        return self.made if self.made.dtype is torch.bool else self.made + 0 * x.sum()


def winners(rows: int, width: int = 128, active: int = 6) -> Tensor:
    order = torch.rand(rows, width, generator=torch.Generator().manual_seed(1)).argsort(1)
    return order < active


CODES = {
    "of floats": winners(64).float().requires_grad_(),
    "of half floats": winners(64).bfloat16().requires_grad_(),
    "of booleans": winners(64),
    "with some more bits in some rows": (torch.rand(64, 128, generator=torch.Generator().manual_seed(0)) < 0.1)
    .float()
    .requires_grad_(),
}
MASKS = {
    "a one-hot choice": winners(64, active=1).float().requires_grad_(),
    "a causal mask": torch.ones(128, 128, dtype=torch.bool).tril(),
    "what is padded": torch.arange(128) >= torch.randint(90, 128, (64, 1), generator=torch.Generator().manual_seed(0)),
    "numbers that need no gradient": winners(64).float(),
    "half of the bits": winners(64, active=64).float().requires_grad_(),
    "no bit at all": torch.zeros(64, 128, requires_grad=True),
    "few columns": winners(64, width=32, active=4).float().requires_grad_(),
    "one row": winners(1).float().requires_grad_(),
    "twos": (2 * winners(64).float()).requires_grad_(),
    "integers": winners(64).long(),
}


def told_of(made: Tensor) -> Row:
    probe, model = RepresentationProbe(unguarded), nn.Sequential(nn.Identity(), Puts(made))
    x = torch.ones(2)
    looked = made if made.dtype in (torch.bool, torch.long) or not made.requires_grad else None
    if looked is not None:
        model[1].forward = lambda _: looked  # type: ignore[method-assign]
    return looked_into(probe, model, x)[1]


@pytest.mark.parametrize("name", CODES)
def test_these_are_sparse_codes(name: str) -> None:
    assert "sdr_active_bits@1" in told_of(CODES[name])


@pytest.mark.parametrize("name", MASKS)
def test_these_are_no_sparse_codes(name: str) -> None:
    assert told_of(MASKS[name]) == {}


def test_the_mask_of_a_dropout_is_no_code() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.9))
    assert looks(model, given=torch.ones(64, 128, requires_grad=True)) == {}


def test_codes_are_looked_for_in_two_looks_and_what_was_found_is_measured_on() -> None:
    model, probe = Speaker(), RepresentationProbe(unguarded)
    given = torch.arange(WORDS).repeat(4).view(4, -1)
    for _ in range(2):
        looked_into(probe, model, given)
    _, row = looked_into(probe, model, given)
    assert "sdr_active_bits@encoder.winners" in row
    probe.open(model, 10, lambda: True)
    heard = [name for name, item in model.named_modules() if id(item) in MODULE_CALLS]
    probe.close(True)
    assert heard == ["words", "encoder", "encoder.winners"]


def truth(matrix: Tensor) -> tuple[float, float, float]:
    values = np.linalg.svd(matrix.double().numpy(), compute_uv=False)
    shares = values / values.sum()
    entropy = -sum(p * math.log(p) for p in shares if p > 1e-15)
    unit = matrix.double() / matrix.double().norm(dim=1, keepdim=True)
    alike = unit @ unit.T
    count = len(matrix)
    cosine = float((alike.sum() - alike.trace()) / (count * (count - 1)))
    return math.exp(entropy), float((values**2).sum() / values.max() ** 2), cosine


@pytest.mark.parametrize(("rows", "columns", "rank"), [(200, 32, 32), (40, 100, 5), (300, 64, 3)])
def test_ranks_and_similarity_are_those_of_the_singular_values(rows: int, columns: int, rank: int) -> None:
    dice = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, rank, generator=dice) @ torch.randn(rank, columns, generator=dice) + 0.2
    assert describe_rows(matrix).tolist() == pytest.approx(truth(matrix), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("rank", [1, 4, 60])
def test_ranks_without_eigenvalues_are_the_same_to_a_thousandth(rank: int) -> None:
    dice = torch.Generator().manual_seed(rank)
    matrix = torch.randn(300, rank, generator=dice) @ torch.randn(rank, 64, generator=dice)
    matrix += 0.01 * torch.randn(300, 64, generator=dice)
    gram = matrix.double().T @ matrix.double()
    shares = gram / gram.trace()
    expected = [float(value) for value in ranks_by_eigenvalues(shares)]
    assert [float(value) for value in ranks_by_resolvents(shares)] == pytest.approx(expected, rel=1e-3)


def test_rows_that_are_not_finite_are_left_out() -> None:
    matrix = torch.randn(100, 16, generator=torch.Generator().manual_seed(0))
    broken = matrix.clone()
    broken[7, 3], broken[20, 1] = math.nan, math.inf
    kept = torch.cat((matrix[:7], matrix[8:20], matrix[21:]))
    assert describe_rows(broken).tolist() == pytest.approx(truth(kept), rel=1e-5)


def test_a_named_module_of_other_outputs_has_ranks() -> None:
    row = looks(Speaker(), "encoder.values")
    assert {name for name in row if name.endswith("values")} == {
        "effective_rank@encoder.values",
        "stable_rank@encoder.values",
        "mean_cosine@encoder.values",
    }
    assert row["effective_rank@encoder.values"] <= 17


def test_a_module_can_be_named_by_the_end_of_its_name() -> None:
    probe = RepresentationProbe(unguarded, ("values", "nothing"))
    _, row = looked_into(probe, Speaker(), torch.arange(WORDS)[None])
    assert "effective_rank@encoder.values" in row
    assert probe.met == {"values"}


def test_channels_of_pictures_are_the_columns() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten())
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    row = looks(model, "0", given=x)
    matrix = model[0](x).detach().movedim(1, -1).reshape(-1, 4)
    assert row["effective_rank@0"] == pytest.approx(truth(matrix)[0], rel=1e-5)


def test_half_precision_is_no_other() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Identity())
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        half = looks(model, "0", given=x)
    assert half["effective_rank@0"] == pytest.approx(looks(model, "0", given=x)["effective_rank@0"], rel=0.02)


def test_the_signals_are_the_same_object_every_time() -> None:
    model, probe = Speaker(), RepresentationProbe(unguarded, ("encoder",))
    given = torch.arange(WORDS).repeat(4).view(4, -1)
    layouts = [[item.signals for item in blocks_of(probe, model, given)[1]] for _ in range(3)]
    assert [value is other for value, other in zip(layouts[1], layouts[2], strict=True)] == [True]


def test_a_measured_training_is_bit_identical() -> None:
    def train(probe: RepresentationProbe | None) -> list[Tensor]:
        model = Speaker()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            given = torch.randint(WORDS, (4, 16))
            output = model(given) if probe is None else looked_into(probe, model, given)[0]
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.state_dict().values(), torch.rand(3)]

    looked, bare = train(RepresentationProbe(unguarded, ("encoder", "values"))), train(None)
    assert all(torch.equal(first, other) for first, other in zip(looked, bare, strict=True))
