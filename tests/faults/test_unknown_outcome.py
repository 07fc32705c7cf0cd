"""A13: a real S3 server that answers late, never, or not any more. No commit twice, none lost, every wait bounded."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.history import SCHEMA, check_history, check_once, read_events, read_log, rows_of
from tests.faults.processes import Crew
from tests.faults.worker import Job
from tests.proxy import FaultProxy
from tests.server_s3 import S3Server
from trigger_core.errors import CommitStateUnknown, StoreUnavailable
from trigger_outbox import Appended, Batch, Outbox, Rows
from trigger_outbox.commit import key_of

ROWS = 3
TIMEOUT_S = 10
SHORT_S = 1
TRIES_MAX = 20
WAIT_S_MAX = 200.0
"""Far above what timeouts and retries add up to, far below for ever."""


def append(outbox: Outbox, batch: int, *, writer: str = "w", txn: bool = True) -> Appended:
    rows = Rows.of(rows_of(writer, batch, ROWS))
    return outbox.append(Batch(rows, SCHEMA, txn=(writer, batch) if txn else None), upkeep=False)


def append_again(outbox: Outbox, batch: int) -> None:
    """Runs a batch until it is acknowledged, as a query does: a client with a short timeout may fail on a busy machine, too."""
    for _ in range(TRIES_MAX):
        try:
            append(outbox, batch)
            return
        except (StoreUnavailable, CommitStateUnknown) as error:
            print(error)
    raise AssertionError(f"batch {batch} was not written in {TRIES_MAX} tries")


def append_to_unknown(outbox: Outbox, batch: int) -> CommitStateUnknown:
    """The error of a batch whose commit meets the fault. Before it has come so far, a short timeout may end a try."""
    for _ in range(TRIES_MAX):
        try:
            append(outbox, batch)
        except StoreUnavailable as error:
            print(error)
        except CommitStateUnknown as error:
            return error
        else:
            break
    raise AssertionError(f"batch {batch} met no fault")


def opened(server: S3Server, url: str, endpoint: str, *, retries: int = 2, timeout_s: int = TIMEOUT_S) -> Outbox:
    return Outbox.open(url, "t", {**server.options_for(endpoint, timeout_s=timeout_s), "max_retries": str(retries)})


def before_commit(outbox: Outbox, act: Callable[[], object]) -> None:
    """Does `act` once, right before the next commit's put."""
    store = outbox.follower.store
    create = store.create

    def acting(key: str, data: bytes) -> None:
        setattr(store, "create", create)  # noqa: B010 - mypy forbids the assignment
        act()
        create(key, data)

    setattr(store, "create", acting)  # noqa: B010


@pytest.mark.parametrize("txn", [True, False])
@pytest.mark.parametrize("retries", [0, 3], ids=["an error", "resent by the client"])
def test_A13_a_lost_reply_to_the_commit_writes_it_once(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_url: str, retries: int, txn: bool
) -> None:
    direct = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    outbox = opened(s3_server, s3_url, s3_proxy.endpoint, retries=retries)
    append(outbox, 0, txn=txn)
    s3_proxy.lose_next_put_reply(key_of(2))
    done = append(outbox, 1, txn=txn)
    assert key_of(2) in s3_proxy.wait_until_lost()
    assert (done.version, done.repeated) == (2, False)
    append(outbox, 2, txn=txn)
    assert read_log(direct).batches == [("w", 0), ("w", 1), ("w", 2)]


def test_A13_a_lost_reply_while_another_takes_the_version_is_a_race_lost(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_url: str
) -> None:
    direct = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    outbox = opened(s3_server, s3_url, s3_proxy.endpoint, retries=0)
    before_commit(outbox, lambda: append(direct, 0, writer="other"))
    s3_proxy.lose_next_put_reply(key_of(1))
    done = append(outbox, 0)
    assert key_of(1) in s3_proxy.wait_until_lost()
    assert (done.version, done.attempts) == (2, 2)
    assert read_log(direct).batches == [("other", 0), ("w", 0)]


@pytest.mark.parametrize("chance", [13], indirect=True)
def test_A13_replies_lost_at_random_among_three_writers(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_url: str, tmp_path: Path, crew: Crew, chance: random.Random
) -> None:
    direct = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    storage = s3_server.options_for(s3_proxy.endpoint, timeout_s=TIMEOUT_S)
    job = Job("write", s3_url, storage=storage, batches=8, rows=ROWS)
    writers = [crew.start(replace(job, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl"))) for n in range(3)]
    clock = threading.Event()
    while any(writer.alive for writer in writers):
        s3_proxy.lose_next_put_reply(chance.choice(("_delta_log/", ".parquet", "_delta_log/", "/t/")))
        clock.wait(chance.random() / 5)
    for writer in writers:
        writer.finish()
    events = read_events(tmp_path.glob("*.jsonl"))
    check_history(read_log(direct), events, batches={f"w{n}": 8 for n in range(3)}, rows=ROWS)


def test_A13_a_server_that_never_answers_is_given_up_and_the_batch_run_again_is_written_once(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_url: str
) -> None:
    direct = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    append(direct, 0)
    outbox = opened(s3_server, s3_url, s3_proxy.endpoint, retries=0, timeout_s=SHORT_S)
    began = time.monotonic()
    before_commit(outbox, s3_proxy.fall_silent)
    assert "run the batch again" in append_to_unknown(outbox, 1).cure
    with pytest.raises(StoreUnavailable):  # silent from the start: nothing was begun
        append(outbox, 1)
    with pytest.raises(StoreUnavailable):
        Outbox.open(s3_url, "t", outbox.follower.store.options)
    assert time.monotonic() - began < WAIT_S_MAX
    s3_proxy.speak_again()
    append_again(outbox, 1)
    append_again(outbox, 2)
    check_once(read_log(direct), {"w": 3}, ROWS)


def test_A13_a_put_that_lands_after_its_retry_is_no_second_commit(s3_server: S3Server, s3_url: str) -> None:
    """The server is stopped with the put in its hands, and may carry it out when it goes on, long after the client gave up."""
    direct = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    append(direct, 0)
    outbox = opened(s3_server, s3_url, s3_server.endpoint, retries=0, timeout_s=SHORT_S)
    before_commit(outbox, s3_server.pause)
    try:
        append_to_unknown(outbox, 1)
    finally:
        s3_server.resume()
    append_again(direct, 1)
    append_again(outbox, 2)
    check_once(read_log(direct), {"w": 3}, ROWS)


def test_A13_a_server_killed_and_started_again_loses_and_repeats_nothing(
    s3_server: S3Server, s3_url: str, tmp_path: Path, crew: Crew
) -> None:
    outbox = Outbox.create(s3_url, "t", SCHEMA, s3_server.storage_options)
    storage = s3_server.options_for(s3_server.endpoint, timeout_s=TIMEOUT_S)
    job = Job("write", s3_url, storage=storage, batches=12, rows=ROWS)
    writers = [crew.start(replace(job, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl"))) for n in range(2)]
    for writer in writers:
        writer.wait_for("acked 2")
    s3_server.restart()
    for writer in writers:
        writer.finish()
    events = read_events(tmp_path.glob("*.jsonl"))
    check_history(read_log(outbox), events, batches={"w0": 12, "w1": 12}, rows=ROWS)
