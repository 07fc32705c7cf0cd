"""Names of topics and consumers: whatever passes is one folder below its parent, on any store."""

from __future__ import annotations

import pickle
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trigger_core.errors import InvalidName
from trigger_core.names import check_name


@pytest.mark.parametrize("name", ["a", "0", "orders", "Orders.v2", "a-b_c", "q1", "q10", "x" * 128])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-a", "_a", "a/b", "a\\b", "a..b", "a b", "a\n", "é", "a%2e", "x" * 129, "a:b", "\x00"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidName, match="topic name") as caught:
        check_name(name)
    assert caught.value.facts["name"] == name
    assert "\n" not in str(caught.value)


def test_the_kind_is_named() -> None:
    with pytest.raises(InvalidName, match="consumer name 'a/b'"):
        check_name("a/b", "consumer")


@pytest.mark.parametrize("thing", [None, 7, b"orders"])
def test_what_is_no_text_is_no_name(thing: object) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(thing)  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@given(st.text(max_size=140))
def test_a_name_that_passes_stays_in_its_folder(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    path = PurePosixPath("/topics") / name
    assert path.parent == PurePosixPath("/topics")
    assert path.name == name
    assert len(name.encode()) <= 128
