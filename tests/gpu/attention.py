"""Whether attention is measured, and left as it is, by each kernel that PyTorch may choose."""

from __future__ import annotations

import torch
from gpu.check import Bench, Check, NotHereError, Outcome
from scenarios.flying import flying
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.optim import AdamW

from mlflow_stability.journal.journal import Record
from mlflow_stability.vocabulary.measured.signal import StepReading

LENGTH, WIDTH, HEADS, STEPS = 128, 64, 4, 12
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


class Attention(nn.Module):
    """One layer of it, by `scaled_dot_product_attention` or by compiled flex attention."""

    def __init__(self, device: torch.device, flexible: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.to(device)
        self.attend = torch.compile(flex_attention) if flexible else None
        if flexible:
            self.mask = create_block_mask(_causal, None, None, LENGTH, LENGTH, device=str(device))

    def forward(self, x: Tensor) -> Tensor:
        shape = (len(x), LENGTH, HEADS, WIDTH // HEADS)
        query, key, value = (item.reshape(shape).transpose(1, 2) for item in self.qkv(x).chunk(3, -1))
        if self.attend is not None:
            mixed = self.attend(query, key, value, block_mask=self.mask)
        else:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]


def _causal(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def kernel(name: str) -> Check:
    """The row of one kernel."""

    def run(bench: Bench) -> Outcome:
        with sdpa_kernel(KERNELS[name]):
            try:
                _train(bench, False)
            except RuntimeError as error:
                raise NotHereError(f"no {name} kernel here: {str(error).splitlines()[0]}") from error
            return _compared(bench, False)

    return Check(f"attention, {name} kernel", run)


def flex(bench: Bench) -> Outcome:
    """Compiled flex attention, forward and backward."""
    return _compared(bench, True)


def _compared(bench: Bench, flexible: bool) -> Outcome:
    """Losses to the bit with and without measuring, and what was measured."""
    bare = _train(bench, flexible)
    with flying(bench.folder, attention_every_n_steps=5) as flown:
        watched = _train(bench, flexible)
    measured = _entropies(flown.records)
    differ = sum(first != other for first, other in zip(bare, watched, strict=True))
    figure = f"{len(measured)} entropies measured, {differ} of {STEPS} losses differ"
    return Outcome(figure, bool(measured) and not differ and all(0 <= value <= 1 for value in measured))


def _train(bench: Bench, flexible: bool) -> list[float]:
    torch.manual_seed(0)
    model = Attention(bench.device, flexible)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    kind = torch.bfloat16 if bench.is_cuda else torch.float32
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(4, LENGTH, WIDTH, device=bench.device)
        with torch.autocast(bench.device.type, kind, enabled=bench.is_cuda):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(value) for value in losses]


def _entropies(records: list[Record]) -> list[float]:
    return [
        value
        for record in records
        if isinstance(record, StepReading)
        for signal, value in zip(record.signals, record.values, strict=True)
        if signal.quantity == "attention_entropy"
    ]


CHECKS = (
    *map(kernel, KERNELS),
    Check("attention, flex attention compiled", flex, needs_cuda=True),
)
