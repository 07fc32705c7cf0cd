"""What a task hands to the commit: its rows, as Arrow IPC, in the message while they are few, else in staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from trigger_outbox.staging import read_staged
from trigger_outbox.storage import Store


@dataclass
class TaskRows(WriterCommitMessage):
    """One task's output. `owner` is the streaming query or the batch job; `batch` its batch."""

    partition: int
    owner: str
    batch: int
    rows: int
    inline: bytes | None = None
    staged: tuple[str, ...] = ()

    def chunks(self, home: Store) -> Iterator[pa.Table]:
        """The rows again, in the order the task saw them; as often as asked."""
        if self.inline is not None:
            yield pa.ipc.open_stream(self.inline).read_all()
        for key in self.staged:
            for batch in read_staged(home, key):
                yield pa.Table.from_batches([batch])
