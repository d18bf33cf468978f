"""Asks whether tensors are finite, and reads the answer when it is wanted.

In: named tensors and their host copies. Out: the names of those that are not finite. Guarantees: what lies on a device
is asked there, by one norm each, and not waited for; what lies on the host is asked of its copy, when the answer is
wanted and in the thread that wants it; a norm that overflows is no verdict, the numbers themselves are looked at;
infinities in buffers and frozen parameters, as in masks, are told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.recovery.state.host_copy import HostCopies, local_part

_NARROW = (torch.float16, torch.bfloat16)


class FiniteCheck:
    """The question, and the answer once it has arrived."""

    def __init__(self, tensors: Mapping[str, Tensor], copies: HostCopies, untrained: Collection[str] = ()) -> None:
        self._copies = copies
        self._untrained = frozenset(untrained)
        """Buffers and frozen parameters."""
        self._hosts: dict[str, Tensor] = {}
        far: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part = _values(local_part(tensor))
            if part is None or not part.numel():
                continue
            self._hosts[name] = copies.of(tensor)
            if not part.is_cpu:
                far[name] = part
        self._far = list(far)
        self._answers = HostCopies(_norms(list(far.values())))
        self._rows = self._answers.all()
        self._found: frozenset[str] | None = None

    def not_finite(self) -> frozenset[str]:
        """The tensors with NaN or infinity in them; waits for the device if need be."""
        if self._found is None:
            self._answers.wait()
            self._copies.wait()
            far = set(self._far)
            near = [name for name in self._hosts if name not in far]
            rows = [*self._rows, *_norms([_numbers(self._hosts[name]) for name in near])]
            finite = (each for row in rows for each in row.isfinite().tolist())
            suspects = [name for name, is_finite in zip([*self._far, *near], finite, strict=True) if not is_finite]
            self._found = frozenset(name for name in suspects if not _numbers(self._hosts[name]).isfinite().all())
        return self._found

    def infinite_masks(self) -> frozenset[str]:
        """The buffers and frozen parameters that hold infinities but no NaN, as masks do."""
        found = self.not_finite() & self._untrained
        return frozenset(name for name in found if not bool(self._hosts[name].isnan().any()))


def is_finite(tensor: Tensor, *, may_be_infinite: bool = False) -> bool:
    """Whether a tensor holds finite numbers alone; `may_be_infinite`: whether it holds no NaN. Waits for the device."""
    values = _values(local_part(tensor))
    if values is None or bool(torch.isfinite(values.sum())):  # an overflow of the sum is no verdict
        return True
    return not bool(values.isnan().any()) if may_be_infinite else bool(torch.isfinite(values).all())


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rows of norms, in the order of the tensors: neighbours of one kind in one kernel."""
    rows: list[Tensor] = []
    start = 0
    for end in range(1, len(tensors) + 1):
        first = tensors[start]
        if end < len(tensors) and tensors[end].dtype is first.dtype and tensors[end].device == first.device:
            continue
        wide = torch.float32 if first.dtype in _NARROW else None
        rows.append(torch.stack(list(torch_api.foreach_norm(list(tensors[start:end]), 2.0, wide))))
        start = end
    return rows


def _values(tensor: Tensor) -> Tensor | None:
    """What can be asked of a tensor: its values, wide enough to be summed; None where only integers are in it."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor.detach().float() if tensor.itemsize == 1 else tensor.detach()


def _numbers(copy: Tensor) -> Tensor:
    """The values of a copy that has some."""
    values = _values(copy)
    return copy if values is None else values
