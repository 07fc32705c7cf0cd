"""Where local processes meet: who is let in, who is taken for dead, what is removed."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from trigger_broker import rendezvous
from trigger_core.errors import BrokerUnavailable

TOPIC = "topic-id"


@pytest.fixture
def base(runtime: Path) -> Path:
    return runtime / "pyspark-trigger"


def die(attachment: rendezvous.Attachment) -> Path:
    """As after SIGKILL: the socket no longer answers, its file is there."""
    attachment.socket.close()
    return Path(attachment.path)


def test_the_base_is_in_the_runtime_directory_of_the_user(runtime: Path, base: Path) -> None:
    assert rendezvous.base_directory() == str(base)


@pytest.mark.parametrize("value", ["", "/does/not/exist"])
def test_without_a_runtime_directory_it_is_in_the_temporary_one(
    value: str, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    assert rendezvous.base_directory() == str(runtime / f"pyspark-trigger-{os.geteuid()}")


def test_the_directories_are_closed_to_others_whatever_the_umask(base: Path) -> None:
    before = os.umask(0)
    try:
        attachment = rendezvous.attach(str(base), TOPIC)
    finally:
        os.umask(before)
    assert base.stat().st_mode & 0o777 == 0o700
    assert Path(attachment.path).parent.stat().st_mode & 0o777 == 0o700
    attachment.detach()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_base_open_to_others_is_refused(base: Path, mode: int) -> None:
    base.mkdir()
    base.chmod(mode)
    for use in (lambda: rendezvous.attach(str(base), TOPIC), lambda: rendezvous.peers(str(base), TOPIC)):
        with pytest.raises(BrokerUnavailable, match="open to others"):
            use()
    base.rmdir()


def test_a_base_that_is_a_link_is_refused(runtime: Path, base: Path) -> None:
    elsewhere = runtime / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    base.symlink_to(elsewhere)
    with pytest.raises(BrokerUnavailable, match="is no directory"):
        rendezvous.attach(str(base), TOPIC)
    assert list(elsewhere.iterdir()) == []
    base.unlink()
    elsewhere.rmdir()


def test_a_base_of_another_user_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.mkdir(mode=0o700)
    uid = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    with pytest.raises(BrokerUnavailable, match=f"belongs to user {uid}, not to {uid + 1}"):
        rendezvous.peers(str(base), TOPIC)
    monkeypatch.undo()
    base.rmdir()


def test_a_directory_too_long_for_a_socket_is_refused(runtime: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="set XDG_RUNTIME_DIR or TMPDIR to a shorter one"):
        rendezvous.attach(str(runtime / ("x" * 100)), TOPIC)


def test_a_base_without_a_parent_is_refused_after_a_bounded_number_of_attempts(runtime: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="its parent exists"):
        rendezvous.attach(str(runtime / "no" / "base"), TOPIC)


def test_attached_are_listed_and_detached_are_not(base: Path) -> None:
    one, two = rendezvous.attach(str(base), TOPIC), rendezvous.attach(str(base), TOPIC)
    assert rendezvous.peers(str(base), TOPIC) == sorted(Path(a.path).name for a in (one, two))
    assert rendezvous.peers(str(base), "another") == []
    one.detach()
    assert rendezvous.peers(str(base), TOPIC) == [Path(two.path).name]
    two.detach()
    assert not base.exists()


def test_a_dead_peer_is_removed_and_a_living_one_is_not(base: Path) -> None:
    living, dead = rendezvous.attach(str(base), TOPIC), die(rendezvous.attach(str(base), TOPIC))
    assert rendezvous.peers(str(base), TOPIC, alive=True) == [Path(living.path).name]
    assert not dead.exists()
    living.detach()


def test_a_sweep_removes_the_dead_of_every_topic(base: Path) -> None:
    living = rendezvous.attach(str(base), "one")
    dead = [die(rendezvous.attach(str(base), topic)) for topic in ("one", "two", "three")]
    rendezvous.sweep(str(base))
    assert not any(path.exists() for path in dead)
    assert [path.name for path in base.iterdir()] == [Path(living.path).parent.name]
    living.detach()


def test_a_sweep_spares_who_is_just_being_born(base: Path) -> None:
    attachment = rendezvous.attach(str(base), TOPIC)
    unborn, stillborn = (Path(attachment.path).parent / name for name in (".1-unborn", ".2-stillborn"))
    for path in (unborn, stillborn):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            bound.bind(str(path))
    long_ago = unborn.stat().st_mtime - 2 * rendezvous.UNBORN_AGE_S_MAX
    os.utime(stillborn, (long_ago, long_ago))
    rendezvous.sweep(str(base))
    assert unborn.exists()
    assert not stillborn.exists()
    assert rendezvous.peers(str(base), TOPIC) == [Path(attachment.path).name]
    unborn.unlink()
    attachment.detach()


def test_nothing_but_a_socket_is_removed(base: Path) -> None:
    attachment = rendezvous.attach(str(base), TOPIC)
    file = Path(attachment.path).parent / "notes"
    file.write_text("mine")
    rendezvous.sweep(str(base))
    assert rendezvous.peers(str(base), TOPIC, alive=True) == [Path(attachment.path).name]
    assert file.read_text() == "mine"
    file.unlink()
    attachment.detach()


def test_too_many_subscribers_are_refused_and_dead_ones_do_not_count(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SUBSCRIBERS_MAX", 2)
    one = rendezvous.attach(str(base), TOPIC)
    die(rendezvous.attach(str(base), TOPIC))
    two = rendezvous.attach(str(base), TOPIC)
    with pytest.raises(BrokerUnavailable, match="limit"):
        rendezvous.attach(str(base), TOPIC)
    one.detach()
    two.detach()


def test_comers_and_leavers_do_not_trip_each_other(base: Path) -> None:
    """Whoever leaves last removes the directories that another is about to use."""
    errors: list[Exception] = []

    def come_and_go() -> None:
        try:
            for _ in range(100):
                rendezvous.attach(str(base), TOPIC).detach()
        except Exception as error:  # noqa: BLE001  # asserted below
            errors.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert not base.exists()
