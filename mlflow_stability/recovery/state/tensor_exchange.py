"""Exchanges the contents of tensors with those of others, in place, so that nothing is lost if it breaks off.

In: pairs of a living tensor and the source of its new content. Out: each has the other's content, then the old ones
again where that is asked. Guarantees: all memory is taken before anything is changed, and no second copy of a training
is needed, for what a tensor held lies in its source meanwhile; an exchange that breaks off anywhere can be undone, bit
for bit; addresses and autograd's version counters stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.recovery.state.optimizer_restore import fill

CHUNK_BYTES = 4 << 20
"""So much is exchanged at once, by way of memory of our own."""


class TensorExchange:
    """Pairs of tensors; with `apply` their contents change places, with `undo` they are as they were."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        with torch.no_grad():
            plain, odd = _sorted_out(pairs)
            largest = max((live.nbytes for live, _ in plain), default=0)
            self._scratch = torch.empty(min(largest, CHUNK_BYTES), dtype=torch.uint8)
            self._swaps: list[_Exchange | _Overwrite] = [_Exchange(*each, self._scratch) for each in plain]
            self._swaps += [_Overwrite(*each) for each in odd]

    def apply(self) -> None:
        """Give each living tensor the content of its source."""
        for each in self._swaps:
            each.apply()

    def undo(self) -> int:
        """Make all as it was, also where `apply` broke off; gives how many living tensors could not be put back."""
        for each in reversed(self._swaps):  # of tensors that share memory the last one goes first
            try:
                each.undo()
            except Exception:
                self._spare_scratch()  # what it holds is the only copy of something
        for each in reversed(self._swaps):
            with contextlib.suppress(Exception):  # what still cannot be put back is counted
                each.undo()
        return sum(each.is_changed for each in self._swaps)

    def refill(self) -> None:
        """After `apply`: the sources have their own content again."""
        for each in self._swaps:
            each.refill()

    def _spare_scratch(self) -> None:
        with contextlib.suppress(Exception):
            fresh = torch.empty_like(self._scratch)
            for each in self._swaps:
                if isinstance(each, _Exchange) and not each.is_half_done:
                    each.scratch = fresh


class _Exchange:
    """Two plain tensors, exchanged chunk by chunk."""

    def __init__(self, live: Tensor, source: Tensor, scratch: Tensor) -> None:
        self.scratch = scratch
        self._live, self._source = live, source
        self._chunk = max(1, CHUNK_BYTES // live.element_size())
        self._at = 0, ""
        """So many elements are exchanged, and which copy of the next chunk may have broken off. One value, so that an
        interruption finds both or none of it."""

    @property
    def is_half_done(self) -> bool:
        """Whether the scratch memory holds what lies nowhere else."""
        return bool(self._at[1])

    @property
    def is_changed(self) -> bool:
        """Whether the living tensor has not its own content."""
        return self._at[0] > 0 or self._at[1] not in ("", "source back")

    def apply(self) -> None:
        """Exchange."""
        done, total = self._at[0], self._live.numel()
        while done < total:
            live, source, scratch = self._parts(done)
            scratch.copy_(live)
            self._at = done, "live"
            live.copy_(source)
            self._at = done, "source"
            source.copy_(scratch)
            done += live.numel()
            self._at = done, ""

    def undo(self) -> None:
        """Exchange back; goes on where it broke off."""
        done, half = self._at
        if half:
            live, source, scratch = self._parts(done)
            if half == "source":
                source.copy_(live)
                half = "live"
                self._at = done, half
            if half == "live":
                live.copy_(scratch)
            else:
                if half == "live back":
                    live.copy_(source)
                    self._at = done, "source back"
                source.copy_(scratch)
            self._at = done, ""
        while done:
            start = (done - 1) // self._chunk * self._chunk
            live, source, scratch = self._parts(start)
            scratch.copy_(live)
            self._at = start, "live back"
            live.copy_(source)
            self._at = start, "source back"
            source.copy_(scratch)
            done = start
            self._at = done, ""

    def refill(self) -> None:
        """The source is what the living tensor is now."""
        self._source.copy_(self._live)
        self._at = 0, ""

    def _parts(self, start: int) -> tuple[Tensor, Tensor, Tensor]:
        size = min(self._chunk, self._live.numel() - start)
        scratch = self.scratch[: size * self._live.element_size()].view(self._live.dtype)
        return self._live.narrow(0, start, size), self._source.narrow(0, start, size), scratch


class _Overwrite:
    """A tensor that is kept beside: it has gaps, or shares memory with another, or is none of the usual kind."""

    def __init__(self, live: Tensor, source: Tensor) -> None:
        self.is_changed = False
        self._live, self._source = live, source
        self._before = live.detach().clone()

    def apply(self) -> None:
        """Give the living tensor its new content."""
        self.is_changed = True
        fill([(self._live, self._source)])

    def undo(self) -> None:
        """Give it its own again."""
        if self.is_changed:
            fill([(self._live, self._before)])
            self.is_changed = False

    def refill(self) -> None:
        """The source has kept its content."""


def _sorted_out(
    pairs: Sequence[tuple[Tensor, Tensor]],
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Pairs whose memory is one stretch each that no other pair touches, flat; and all others as they are."""
    plain, odd = [], []
    seen: set[tuple[int, ...]] = set()
    for live, source in pairs:
        if not live.numel() and live.layout is torch.strided:
            continue
        if not _is_one_stretch(live) or not _is_one_stretch(source) or live.stride() != source.stride():
            odd.append((live, source))
            continue
        key = (live.data_ptr(), source.data_ptr(), live.nbytes)
        if key not in seen:  # two names of one memory
            seen.add(key)
            plain.append((live, source))
    shared = _touching([live for live, _ in plain]) | _touching([source for _, source in plain])
    odd += [each for number, each in enumerate(plain) if number in shared]
    return [(_flat(live), _flat(source)) for n, (live, source) in enumerate(plain) if n not in shared], odd


def _is_one_stretch(tensor: Tensor) -> bool:
    """Whether a tensor of the usual kind fills its memory without gaps, in whatever order."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _touching(tensors: Sequence[Tensor]) -> set[int]:
    """Which of these share memory with another."""
    spans = sorted((str(each.device), each.data_ptr(), each.nbytes, n) for n, each in enumerate(tensors))
    found: set[int] = set()
    reach: tuple[str, int, int] = ("", 0, -1)
    """The one that reaches furthest so far."""
    for device, start, nbytes, number in spans:
        if device == reach[0] and start < reach[1]:
            found |= {number, reach[2]}
        if device != reach[0] or start + nbytes > reach[1]:
            reach = device, start + nbytes, number
    return found


def _flat(tensor: Tensor) -> Tensor:
    """Its memory as one row; in-place changes of it do not count as versions."""
    data = tensor.detach().data
    return data.as_strided((data.numel(),), (1,))
