"""Shows how far the reading of many runs is: a bar with the time that is left, on stderr, and only on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ReadingProgress:
    """The bar; it is gone when the reading is done."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ReadingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, done: int, total: int, failed: int) -> None:
        """Move the bar."""
        said = f"Reading runs ({failed} failed)" if failed else "Reading runs"
        if self._task is None:
            self._task = self._bar.add_task(said, total=total)
        self._bar.update(self._task, completed=done, total=total, description=said)
