"""The commit side of the sink: the messages of a batch become one append, in partition order, then a wakeup.

Runs in a process that Spark keeps between batches and may replace at any time: what is kept there is only faster.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from trigger_core.errors import TopicNotFound, TriggerError
from trigger_core.options import SinkOptions
from trigger_outbox import Appended, Batch, Outbox, Rows
from trigger_outbox.schema import topic_schema
from trigger_outbox.staging import STAGING, owner_prefix, sweep_old, sweep_owner
from trigger_outbox.storage import Store, open_store
from trigger_sink.message import TaskRows
from trigger_sink.producer import Target, forget_producer, shared_producer

log = logging.getLogger("pyspark_trigger")
SWEEP_EVERY_BATCHES = 1000


def target_of(options: SinkOptions) -> Target:
    return Target(
        options.path, options.topic, options.broker, options.storage, options.broker_options, options.publish_timeout_ms
    )


def home_of(options: SinkOptions) -> Store:
    return open_store(options.path, options.storage).child(options.topic)


def check_schema(options: SinkOptions, schema: pa.Schema) -> None:
    """Refuses at the start what the first commit would: reserved or repeated names, types Delta can't hold, a topic with
    other columns. Writes nothing."""
    topic_schema(schema)
    try:
        outbox = Outbox.open(options.path, options.topic, options.storage)
    except TopicNotFound as error:
        if error.facts.get("dropped"):
            raise
        return
    known = outbox.state.metadata.schema
    (known.merged(schema) if options.merge_schema else known).conform(schema.empty_table())


def commit_rows(
    options: SinkOptions, schema: pa.Schema, messages: Sequence[TaskRows], txn: tuple[str, int] | None, *, strict: bool
) -> Appended:
    """One Delta commit for all tasks, or none for a batch that is empty or was committed before."""
    home = home_of(options)
    ordered = sorted(messages, key=lambda message: message.partition)

    def chunks() -> Iterator[pa.Table]:
        for message in ordered:
            yield from message.chunks(home)

    rows = Rows(chunks, sum(message.rows for message in ordered))
    batch = Batch(rows, schema, txn, strict, options.merge_schema, options.wakeup_payload_bytes)
    target = target_of(options)
    try:
        done = shared_producer(target).append(batch)
    except TriggerError:
        forget_producer(target)
        raise
    if done.repeated and txn is not None:
        log.warning(
            "topic %s: batch %d of %s was committed before; its %d rows were not written again",
            options.topic,
            txn[1],
            txn[0],
            rows.count,
        )
    _sweep(home, ordered)
    return done


def abort_rows(options: SinkOptions, messages: Sequence[TaskRows | None], operation: str | None) -> None:
    """Removes what the tasks staged. No rows, no wakeup."""
    home = home_of(options)
    finished = [message for message in messages if message is not None]
    owners = {(message.owner, message.batch) for message in finished}
    if operation is not None:
        owners.add((operation, 0))
    for owner, batch in owners:
        home.delete([entry.key for entry in home.list(f"{owner_prefix(owner)}/{batch}")])
        sweep_owner(home, owner, batch)


def _sweep(home: Store, messages: Sequence[TaskRows]) -> None:
    """After the commit: staged rows are of no more use. A sweep that fails is made up for by the next, or by age."""
    try:
        for owner, batch in {(message.owner, message.batch) for message in messages if message.staged}:
            sweep_owner(home, owner, batch)
        if messages and messages[0].batch % SWEEP_EVERY_BATCHES == 0 and any(True for _ in home.list(STAGING)):
            sweep_old(home)
    except TriggerError as error:
        log.warning("staged rows of %s were not swept: %s", home.url, error)
