"""Errors: one tree, each pickles, and its text starts with its code."""

from __future__ import annotations

import pickle

import pytest

from trigger_core import errors
from trigger_core.errors import CommitStateUnknown, DataLoss, OffsetError, TriggerError

TREE = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TriggerError)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_pickles_with_its_facts(kind: type[TriggerError]) -> None:
    error = kind("it broke at 7", "mend it", requested=7, name="orders")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.problem, again.cure, again.facts) == ("it broke at 7", "mend it", {"requested": 7, "name": "orders"})
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", TREE)
def test_the_text_is_one_line_that_starts_with_the_code(kind: type[TriggerError]) -> None:
    assert str(kind("it broke", "mend it")) == f"[{kind.__name__}] it broke — mend it"
    assert str(kind("it broke")) == f"[{kind.__name__}] it broke"


@pytest.mark.parametrize("kind", TREE)
def test_the_drawn_tree_names_every_error(kind: type[TriggerError]) -> None:
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


def test_a_family_is_caught_by_its_parent() -> None:
    with pytest.raises(OffsetError) as caught:
        raise DataLoss("gone", requested=1, earliest=5, latest=9)
    assert caught.value.facts == {"requested": 1, "earliest": 5, "latest": 9}
    assert issubclass(CommitStateUnknown, TriggerError)
