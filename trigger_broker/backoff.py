"""How long to wait before the next try at a server: doubled, capped, with jitter. It neither waits nor asks a clock."""

from __future__ import annotations

import random

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0


class Backoff:
    """`delay_s()` after each failure, `reset()` after a success."""

    def __init__(self, least_s: float = BACKOFF_S_MIN, most_s: float = BACKOFF_S_MAX) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._next_s = least_s

    def delay_s(self) -> float:
        """From half of the step to the whole of it: many clients that lost one server do not return as one."""
        step, self._next_s = self._next_s, min(self._most_s, 2 * self._next_s)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next_s = self._least_s
