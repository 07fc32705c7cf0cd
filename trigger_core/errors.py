"""Every error this product raises, in one tree.

    TriggerError
    ├── InvalidOption            an option, argument or combination that can't be meant
    ├── InvalidName              a topic or consumer name that could not be a folder
    ├── SchemaError
    │   ├── SchemaMismatch       rows that don't fit the topic
    │   ├── SchemaConflict       a topic exists with another schema
    │   ├── UnsupportedType      a column type that Delta can't hold
    │   └── ReservedColumn       a column name that the engine owns
    ├── TopicNotFound
    ├── TopicRecreated           the name is the same, the table is another
    ├── OffsetError
    │   ├── InvalidOffset        garbled, foreign, negative, 2^63 or more, start beyond end
    │   ├── UnsupportedOffset    written by a newer version of this product
    │   ├── OffsetEvicted        a broker no longer holds it (Delta does)
    │   └── DataLoss             Delta itself no longer holds it
    ├── CheckpointRewound        a batch older than the last one committed
    ├── CommitError
    │   ├── CommitStateUnknown   the store did not say whether the commit landed
    │   ├── CommitContended      lost every race it was allowed
    │   └── ClockAhead           this host's clock, or an earlier writer's, is off
    ├── OutboxDamaged            the log contradicts itself
    ├── UnsupportedTable         a Delta feature that this version does not know
    ├── StoreError
    │   ├── StoreUnavailable     down, silent, out of space, read-only
    │   └── UnsafeStore          can't create a key only if it is absent
    └── BrokerError
        ├── BrokerUnavailable
        └── MalformedWakeup      bytes that are no wakeup of ours

The text of an error starts with its code, so that it can be read on the first line of a Spark traceback: what happened,
with the numbers, then what to do. All of them pickle, because they cross processes.
"""

from __future__ import annotations


class TriggerError(Exception):
    """Root of the tree. `code` is stable and starts the text."""

    def __init__(self, problem: str, cure: str = "", **facts: object) -> None:
        self.problem = problem
        self.cure = cure
        self.facts = facts
        super().__init__(problem, cure, facts)

    @property
    def code(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        return f"[{self.code}] {self.problem}" + (f" — {self.cure}" if self.cure else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.problem, self.cure, self.facts)


def _rebuild(kind: type[TriggerError], problem: str, cure: str, facts: dict[str, object]) -> TriggerError:
    return kind(problem, cure, **facts)


class InvalidOption(TriggerError): ...


class InvalidName(TriggerError): ...


class SchemaError(TriggerError): ...


class SchemaMismatch(SchemaError): ...


class SchemaConflict(SchemaError): ...


class UnsupportedType(SchemaError): ...


class ReservedColumn(SchemaError): ...


class TopicNotFound(TriggerError): ...


class TopicRecreated(TriggerError): ...


class OffsetError(TriggerError): ...


class InvalidOffset(OffsetError): ...


class UnsupportedOffset(OffsetError): ...


class OffsetEvicted(OffsetError):
    """`facts` has `requested` and `earliest`, both engine offsets."""


class DataLoss(OffsetError):
    """`facts` has `requested`, `earliest` and `latest`."""


class CheckpointRewound(TriggerError): ...


class CommitError(TriggerError): ...


class CommitStateUnknown(CommitError): ...


class CommitContended(CommitError): ...


class ClockAhead(CommitError): ...


class OutboxDamaged(TriggerError): ...


class UnsupportedTable(TriggerError): ...


class StoreError(TriggerError): ...


class StoreUnavailable(StoreError): ...


class UnsafeStore(StoreError): ...


class BrokerError(TriggerError): ...


class BrokerUnavailable(BrokerError): ...


class MalformedWakeup(BrokerError): ...
