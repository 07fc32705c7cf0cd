"""Where a stream starts, and where it goes on after a stop or a crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.lab import Lab, Seen, consecutive, ids, refused


def test_B1_B3_B4_B5_B8_earliest_then_resumed_misses_none_and_repeats_none(lab: Lab) -> None:
    lab.publish(0, 10)
    lab.publish(10, 25)
    first = lab.drain(lab.stream(startingOffsets="earliest"))
    assert first.offsets == ids(first.rows) == consecutive(0, 25)  # B1
    assert lab.drain(lab.stream(startingOffsets="earliest")).rows == []  # B4: a clean restart reads nothing
    lab.publish(25, 40)
    missed = lab.drain(lab.stream(startingOffsets="earliest"))
    assert missed.offsets == ids(missed.rows) == consecutive(25, 40)  # B3, B5: what came while it was stopped
    lab.publish(40, 41)
    assert lab.drain(lab.stream(startingOffsets="earliest")).offsets == [40]  # B8: resumed at the head
    assert lab.positions()[-1]["next"] == 41


def test_B2_T21_latest_sees_only_later_rows_also_after_a_restart_before_the_first(lab: Lab) -> None:
    lab.publish(0, 10)
    assert lab.drain(lab.stream()).rows == []  # T21: a fresh reader replays no history
    lab.publish(10, 13)  # while it is stopped, and before it saw its first row
    assert lab.drain(lab.stream()).offsets == consecutive(10, 13)
    assert [position["next"] for position in lab.positions()] == [10, 13]


@pytest.mark.parametrize("start", ["latest", "earliest", "4"])
def test_B22_a_crash_between_the_first_offsets_and_the_first_commit(lab: Lab, start: str) -> None:
    lab.publish(0, 10)
    begin = {"latest": 10, "earliest": 0, "4": 4}[start]
    first = lab.drain(lab.stream(startingOffsets=start))
    assert first.offsets == consecutive(begin, 10)
    assert lab.last("offsets") == 0
    lab.forget("commits", 0)
    lab.publish(10, 20)  # a writer runs meanwhile, so that `latest` has moved
    again = lab.drain(lab.stream(startingOffsets=start))
    assert dict(again.batches)[0] == first.rows, "batch 0 is the same when it is run again"
    assert again.offsets == consecutive(begin, 20)
    lab.publish(20, 21)
    assert lab.drain(lab.stream(startingOffsets=start)).offsets == [20]


def test_B21_restarted_with_other_options_the_checkpoint_wins(lab: Lab) -> None:
    lab.publish(0, 10)
    lab.drain(lab.stream(startingOffsets="earliest"))
    lab.publish(10, 16)
    changed = lab.drain(lab.stream(startingOffsets="2", maxOffsetsPerTrigger=4, broker="none:"))
    assert changed.offsets == consecutive(10, 16)
    assert changed.sizes == [4, 2]
    assert lab.drain(lab.stream()).rows == []


def test_T22_a_batch_that_failed_comes_again_and_is_not_passed_by_the_next(lab: Lab) -> None:
    lab.publish(0, 6)
    delivered: list[int] = []

    def webhook(frame: Any, batch: int) -> None:
        delivered.extend(row["_offset"] for row in frame.collect())
        if 2 in delivered:
            raise RuntimeError("the receiver is down")

    with pytest.raises(Exception, match="the receiver is down"):
        lab.drain(lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=2), seen=Seen(webhook))
    assert delivered == [0, 1, 2, 3]
    assert lab.drain(lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=2)).offsets == consecutive(2, 6)


def test_B11_an_offset_that_is_foreign_garbled_or_from_the_future_is_refused_at_the_start(lab: Lab) -> None:
    lab.publish(0, 10)
    lab.publish(0, 10, "other")
    lab.drain(lab.stream(startingOffsets="earliest"))
    kept = (lab.checkpoint() / "offsets" / "0").read_text().splitlines()[2]
    lab.publish(10, 12)

    def restart(text: str) -> Any:
        lab.rewrite_offset(0, text)
        return lambda: lab.drain(lab.stream())

    refused(restart(kept.replace('"v": 1', '"v": 2')), "UnsupportedOffset", "version 2", "upgrade pyspark-trigger")
    refused(restart('{"sourceVersion":1,"reservoirId":"x","reservoirVersion":3,"index":-1}'), "InvalidOffset", "not of this product")
    refused(restart(kept.replace('"next": 10', '"next": "ten"')), "InvalidOffset", "'ten' is not a whole number")
    refused(restart(kept.replace('"next": 10', '"next": 9999')), "InvalidOffset", "9999", "12")
    lab.rewrite_offset(0, kept)
    refused(lambda: lab.drain(lab.stream("other")), "InvalidOffset", "'t'", "'other'")  # the checkpoint of another topic
    assert lab.drain(lab.stream()).offsets == [10, 11], "what was refused has changed nothing"


def test_B12_a_topic_that_was_dropped_and_created_again_is_refused(lab: Lab) -> None:
    lab.publish(0, 10)
    lab.drain(lab.stream(startingOffsets="earliest"))
    lab.topic().drop()
    lab.publish(0, 20)
    refused(lambda: lab.drain(lab.stream()), "TopicRecreated", "'t'", "new checkpointLocation")


def test_B23_C5_a_trim_below_the_checkpoint_is_nothing_and_one_past_it_is_refused_with_the_numbers(lab: Lab) -> None:
    lab.publish(0, 900)
    lab.drain(lab.stream(startingOffsets="0"))
    lab.publish(900, 1000)
    lab.topic().trim(800)
    assert lab.drain(lab.stream(startingOffsets="0")).offsets == consecutive(900, 1000)  # first started at 0, which is gone
    lab.publish(1000, 1100)
    lab.topic().trim(1050)
    refused(lambda: lab.drain(lab.stream(startingOffsets="0")), "DataLoss", "1000", "earliest 1050", "latest 1100")


def test_B24_a_reader_at_the_head_of_an_emptied_topic_idles_on(lab: Lab) -> None:
    lab.publish(0, 50)
    lab.drain(lab.stream(startingOffsets="earliest"))
    topic = lab.topic()
    topic.trim(50)
    topic.vacuum(retention_hours=0)
    assert lab.read().count() == 0
    assert lab.drain(lab.stream(startingOffsets="earliest")).rows == []
    lab.publish(50, 51)
    assert lab.drain(lab.stream(startingOffsets="earliest")).offsets == [50]


def test_B25_a_column_that_was_added_while_the_query_was_stopped_is_there_after_the_restart(lab: Lab) -> None:
    lab.publish(0, 3)
    assert lab.drain(lab.stream(startingOffsets="earliest")).rows[0].asDict().keys() == {"_offset", "_produced_at", "id"}
    lab.publish(3, 4)
    lab.topic().append([{"id": 4, "note": "new"}], mergeSchema=True)
    rows = lab.drain(lab.stream(startingOffsets="earliest")).rows
    assert [(row["id"], row["note"]) for row in rows] == [(3, None), (4, "new")]
