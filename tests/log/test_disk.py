"""A full disk and a read-only folder: a clear error, the log whole, and the next append fine once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.orders import SCHEMA, TOPIC, append, assert_sound, batch, created, filled, ids, listing, reopened, table
from trigger_core.errors import StoreUnavailable
from trigger_outbox import Batch, Outbox, Rows
from trigger_outbox.outbox import drop_topic
from trigger_outbox.staging import stage

DISK_BYTES = 1024 * 1024


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"can't mount a small disk here (root in a namespace that allows it is needed): {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, its own."""
    if os.geteuid() != 0:
        pytest.skip("can't mount a small disk here: not root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave_bytes: int = 0) -> Path:
    """Takes all the room there is, or all but some."""
    ballast = disk / "ballast"
    ballast.write_bytes(b"")
    with ballast.open("ab", buffering=0) as file:
        for piece in (64 * 1024, 4096, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError:
                pass  # full, by this measure
    os.truncate(ballast, max(0, ballast.stat().st_size - leave_bytes))
    return ballast


def large(first: int, rows: int = 3_000) -> Batch:
    """More than some pages of incompressible rows."""
    names = [os.urandom(16).hex() for _ in range(rows)]
    body = table(*range(first, first + rows))
    return batch(body.set_column(1, SCHEMA.field("name"), [names]))


@pytest.mark.parametrize("leave_bytes", [0, 4096, 8192])
def test_a_full_disk_refuses_an_append_and_the_log_is_whole(disk: Path, leave_bytes: int) -> None:
    place = Place(str(disk / "topics"))
    outbox = filled(place, 3)
    ballast = fill(disk, leave_bytes)
    before = {key: size for key, size in listing(place).items() if "_delta_log" in key}
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="No space left.*make room") as caught:
            outbox.append(large(outbox.state.end))
        assert "\n" not in str(caught.value)
    assert {key: size for key, size in listing(place).items() if "_delta_log" in key} == before
    assert not list(disk.rglob(".tmp-*")), "no half-written file is left"
    assert ids(reopened(place)) == [0, 1, 2], "reading needs no room"
    ballast.unlink()
    append(outbox, 3)
    append(reopened(place), 4)
    assert ids(reopened(place)) == [0, 1, 2, 3, 4]
    assert_sound(outbox, rows=5)


def test_a_disk_that_fills_between_the_rows_and_their_commit(disk: Path) -> None:
    """The rows found room, the commit did not: nothing counts, and nothing is written twice later."""
    place = Place(str(disk / "topics"))
    outbox = filled(place, 1)
    chunks = 0

    def filling() -> Iterator[object]:
        nonlocal chunks
        chunks += 1
        if chunks == 2:  # once for the files; then for the payload, after they are on disk
            fill(disk)
        yield table(1)

    rows = Rows(filling, 1)
    with pytest.raises(StoreUnavailable, match="No space left"):
        outbox.append(Batch(rows, SCHEMA, txn=("query", 1)))
    assert chunks == 2
    (disk / "ballast").unlink()
    assert not append(outbox, 1, txn=("query", 1)).repeated
    assert ids(reopened(place)) == [0, 1]
    assert_sound(outbox, rows=2)


def test_a_full_disk_refuses_everything_else_clearly(disk: Path) -> None:
    place = Place(str(disk / "topics"))
    outbox = filled(place, 4)
    ballast = fill(disk)
    doings: list[Callable[[], object]] = [
        lambda: created(place, "another"),
        lambda: outbox.trim(2),
        lambda: outbox.compact(files_min=2),
        lambda: stage(outbox.home, "query", 1, 0, 0, table(1).to_batches(), SCHEMA),
    ]
    for doing in doings:
        with pytest.raises(StoreUnavailable, match="No space left"):
            doing()
    assert not outbox.checkpoint()
    ballast.unlink()
    created(place, "another")
    outbox.trim(2)
    assert outbox.compact(files_min=2) == 2
    assert outbox.checkpoint()
    assert ids(reopened(place)) == [2, 3]
    assert_sound(outbox, rows=2)


def test_a_drop_that_finds_no_room_leaves_the_topic_whole(disk: Path) -> None:
    place = Place(str(disk / "topics"))
    filled(place, 2)
    fill(disk)
    with pytest.raises(StoreUnavailable, match="No space left"):
        drop_topic(place.path, TOPIC)
    assert ids(reopened(place)) == [0, 1], "the commit that ends it found no room: it goes on"


def refuses_writes(outbox: Outbox, place: Place, text: str) -> None:
    before = listing(place)
    doings: list[Callable[[], object]] = [
        lambda: append(outbox, 9),
        lambda: created(place, "another"),
        lambda: outbox.trim(1),
        lambda: outbox.release(),
    ]
    for doing in doings:
        with pytest.raises(StoreUnavailable, match=text) as caught:
            doing()
        assert caught.value.cure
    assert listing(place) == before
    assert ids(reopened(place)) == [0, 1], "reading is as ever, also from anew"
    assert_sound(reopened(place), rows=2)


def test_a_read_only_file_system(disk: Path) -> None:
    place = Place(str(disk / "topics"))
    outbox = filled(place, 2)
    mount("-o", "remount,ro", str(disk))
    refuses_writes(outbox, place, "Read-only file system.*read-only: choose another path")
    mount("-o", f"remount,rw,size={DISK_BYTES}", str(disk))
    assert append(outbox, 2).range == OffsetRange(2, 3)
    assert_sound(outbox, rows=3)


def test_a_folder_without_write_access(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    place = Place(str(tmp_path / "topics"))
    outbox = filled(place, 2)
    folders = [Path(place.path), *[path for path in Path(place.path).rglob("*") if path.is_dir()]]
    for folder in folders:
        folder.chmod(0o555)
    try:
        refuses_writes(outbox, place, "Permission denied.*write access")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert append(outbox, 2).range == OffsetRange(2, 3)
