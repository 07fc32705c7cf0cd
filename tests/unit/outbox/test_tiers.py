"""Which files are merged: neighbours only, within a size, and so that the number of files stays bounded as a topic grows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.outbox.commits import data_file
from trigger_outbox.commit import DataFile
from trigger_outbox.encode import FILE_BYTES_MAX, level_of
from trigger_outbox.tiers import LEVEL_TOP, RUN_FILES_MAX, TIER_FILES, merged_level, plan_merge

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def logs(draw: st.DrawFn) -> list[DataFile]:
    """Files in offset order, with holes between some of them, of any level and size."""
    files, at = [], 0
    shapes = st.tuples(
        st.integers(1, 5),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 9]),
        st.sampled_from([1_000, 1_000_000, FILE_BYTES_MAX // 3, FILE_BYTES_MAX]),
        st.sampled_from([0] * 20 + [1]),
    )
    for rows, level, size, hole in draw(st.lists(shapes, max_size=120)):
        at += hole
        files.append(data_file(at, at + rows, level=level, size=size))
        at += rows
    return files


@DETERMINISTIC
@given(logs(), st.integers(2, 12))
def test_a_merge_is_of_neighbours_and_within_its_bounds(files: list[DataFile], files_min: int) -> None:
    chosen = plan_merge(files, files_min=files_min)
    if not chosen:
        return
    assert 2 <= len(chosen) <= RUN_FILES_MAX
    assert all(left.end == right.start for left, right in pairwise(chosen)), "contiguous"
    first = files.index(chosen[0])
    assert files[first : first + len(chosen)] == chosen, "nothing between them is left out"
    assert sum(file.size for file in chosen) <= FILE_BYTES_MAX
    assert merged_level(chosen) > min(file.level for file in chosen)


@DETERMINISTIC
@given(logs(), st.integers(2, 12))
def test_merging_ends(files: list[DataFile], files_min: int) -> None:
    for _ in range(len(files) + 1):
        chosen = plan_merge(files, files_min=files_min)
        if not chosen:
            return
        files = merge(files, chosen)
    pytest.fail("a merge of n files takes more than n rounds")


def merge(files: list[DataFile], chosen: list[DataFile]) -> list[DataFile]:
    first = files.index(chosen[0])
    size = sum(file.size for file in chosen)
    level = merged_level(chosen)
    return [
        *files[:first],
        data_file(chosen[0].start, chosen[-1].end, level=level, size=size),
        *files[first + len(chosen) :],
    ]


def grow(appends: int, size: int) -> tuple[int, int, int]:
    """(most files ever, bytes written in all, bytes in the log) after that many appends, each followed by one round."""
    files: list[DataFile] = []
    most = written = 0
    for at in range(appends):
        files.append(data_file(at, at + 1, size=size, level=level_of(size)))
        written += size
        chosen = plan_merge(files)
        if chosen:
            files = merge(files, chosen)
            written += sum(file.size for file in chosen)
        most = max(most, len(files))
    assert [file.start for file in files] == sorted(file.start for file in files)
    assert sum(file.rows for file in files) == appends
    return most, written, appends * size


def test_the_number_of_files_does_not_grow_with_the_topic() -> None:
    small, _, _ = grow(1_000, 1_000)
    large, written, held = grow(8_000, 1_000)
    assert small <= 2 * TIER_FILES + 1
    assert large <= 3 * TIER_FILES + 1, "a level more, 64 files more"
    assert written <= 4 * held, "a row is written once per level"


@pytest.mark.parametrize("size", [100_000, 5_000_000, FILE_BYTES_MAX // 4, FILE_BYTES_MAX])
def test_large_appends_are_merged_up_to_the_files_size_only(size: int) -> None:
    most, written, held = grow(600, size)
    assert most <= 2 * TIER_FILES + 2 * held // FILE_BYTES_MAX + 2
    assert written <= 4 * held


def test_nothing_is_due_below_a_tier() -> None:
    files = [data_file(at, at + 1) for at in range(TIER_FILES - 1)]
    assert plan_merge(files) == []
    assert plan_merge([*files, data_file(TIER_FILES - 1, TIER_FILES)]) != []


def test_files_without_statistics_are_left_alone() -> None:
    unknown = DataFile("x.parquet", 10, -1, -1, -1, 0, 0, 0)
    assert plan_merge([unknown, unknown, unknown], files_min=2) == []


def test_the_top_level_is_the_last() -> None:
    top = [data_file(at, at + 1, level=LEVEL_TOP) for at in range(4)]
    assert merged_level(top) == LEVEL_TOP
    assert plan_merge(top, files_min=2) == []
