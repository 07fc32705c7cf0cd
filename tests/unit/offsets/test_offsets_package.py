"""The package as a whole: its public names, and that it is arithmetic alone."""

from __future__ import annotations

import ast
from pathlib import Path

import offsets

ALLOWED = {"__future__", "collections", "dataclasses", "itertools", "json", "offsets", "trigger_core", "typing"}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


def test_public_names_are_pinned() -> None:
    assert sorted(offsets.__all__) == [
        "BATCH_BYTES_MAX",
        "CompletenessProof",
        "HotPayload",
        "InitKind",
        "Limits",
        "OFFSET_MAX",
        "OffsetRange",
        "PARTITION_BYTES_MAX",
        "PIECES_MAX",
        "Piece",
        "StreamOffset",
        "TRIGGER_DELAY_MS_DEFAULT",
        "TopicPosition",
        "UNLIMITED",
        "admit",
        "available_now",
        "check_offset",
        "check_topic",
        "group",
        "missing",
        "plan",
        "range_between",
        "split",
    ]
    assert all(hasattr(offsets, name) for name in offsets.__all__)


def test_the_package_does_no_io_and_reads_no_clock() -> None:
    folder = Path(offsets.__file__).parent
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED, path.name
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in ALLOWED, path.name
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, path.name
