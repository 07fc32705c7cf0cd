"""Pure arithmetic on offsets: ranges, Spark's offset JSON, admission, hot and cold planning, proofs. No I/O, no clock."""

from offsets.admission import TRIGGER_DELAY_MS_DEFAULT, UNLIMITED, Limits, admit, available_now
from offsets.offset import InitKind, StreamOffset, TopicPosition, check_topic, range_between
from offsets.plan import BATCH_BYTES_MAX, PARTITION_BYTES_MAX, HotPayload, Piece, group, plan
from offsets.proof import CompletenessProof
from offsets.ranges import OFFSET_MAX, PIECES_MAX, OffsetRange, check_offset, missing, split

__all__ = [
    "BATCH_BYTES_MAX",
    "OFFSET_MAX",
    "PARTITION_BYTES_MAX",
    "PIECES_MAX",
    "TRIGGER_DELAY_MS_DEFAULT",
    "UNLIMITED",
    "CompletenessProof",
    "HotPayload",
    "InitKind",
    "Limits",
    "OffsetRange",
    "Piece",
    "StreamOffset",
    "TopicPosition",
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
