"""Which files to merge next: a pure function over the active files.

Small files are merged in tiers, neighbours by offset only: 64 of level 0 make one of level 1, 64 of those one of level 2, and
so on up to FILE_BYTES_MAX. So a topic has some 64 files per level whatever its age, and a row is rewritten once per level.
"""

from __future__ import annotations

from collections.abc import Sequence

from trigger_outbox.commit import DataFile
from trigger_outbox.encode import FILE_BYTES_MAX

TIER_FILES = 64
RUN_FILES_MAX = 256
"""A run of mixed levels this long is merged even if no level in it is full."""
LEVEL_TOP = 9


def plan_merge(files: Sequence[DataFile], *, files_min: int = TIER_FILES) -> list[DataFile]:
    """Neighbouring files, by start, that should become one; empty when there is nothing to do."""
    if len(files) < files_min:
        return []
    for level in sorted({file.level for file in files}):  # asked after every append: only the levels there are
        if level >= LEVEL_TOP:
            break
        for run in _runs(files, level):
            full = sum(file.level == level for file in run)
            if full < files_min and len(run) < max(files_min, RUN_FILES_MAX):
                continue
            chosen = _first_that_fit(run)
            if len(chosen) >= 2:
                return chosen
    return []


def merged_level(files: Sequence[DataFile]) -> int:
    return min(LEVEL_TOP, max(file.level for file in files) + 1)


def _runs(files: Sequence[DataFile], level_max: int) -> list[list[DataFile]]:
    """Maximal runs of neighbours whose level is at most `level_max` and which may still grow."""
    runs: list[list[DataFile]] = [[]]
    for file in files:
        mergeable = file.rows > 0 and file.level <= level_max and file.size < FILE_BYTES_MAX // 2
        if not mergeable or (runs[-1] and runs[-1][-1].end != file.start):
            runs.append([])
        if mergeable:
            runs[-1].append(file)
    return [run for run in runs if len(run) >= 2]


def _first_that_fit(run: Sequence[DataFile]) -> list[DataFile]:
    """As many from the front as stay within one file; at most a tier's worth and what lies between."""
    chosen: list[DataFile] = []
    size = 0
    for file in run[:RUN_FILES_MAX]:
        if size + file.size > FILE_BYTES_MAX:
            break
        chosen.append(file)
        size += file.size
    return chosen
