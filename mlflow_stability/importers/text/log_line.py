"""What one line of a log says, whatever its form.

In the room: `text_log` asks each form of line in turn; the first that recognises a line gives its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class LogLine:
    """The values of one line, with the step and epoch that it names."""

    values: dict[str, float] = field(default_factory=dict)
    step: float = math.nan
    total: float = math.nan
    """Of how many the step is: 2983 of ``200/2983 batches``."""
    epoch: float = math.nan
    time: float = 0.0
    form: str = ""
    """Of which form it is: ``json_lines``, ``fairseq``, ``key_value_table``, ``text``."""
    label: str = ""
    """The words in front of the first value, which tell apart lines of different meaning."""

    @property
    def has_step(self) -> bool:
        """Whether it names its step."""
        return self.step == self.step
