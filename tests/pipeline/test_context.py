"""Ids that nobody else has."""

import os

from antiphon.domain.context import IDS_PER_READ, SystemClock


def test_ids_are_32_digits_and_each_is_given_once():
    clock = SystemClock()
    made = [clock.unique() for _ in range(3 * IDS_PER_READ)]
    assert len(set(made)) == len(made)
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in made)


def test_a_forked_process_gives_none_of_its_parents_ids():
    clock = SystemClock()
    clock.unique()  # others wait now
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, "".join(clock.unique() for _ in range(IDS_PER_READ)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    theirs = {text[begin : begin + 32] for begin in range(0, len(text), 32)}
    assert len(theirs) == IDS_PER_READ
    assert theirs.isdisjoint(clock.unique() for _ in range(IDS_PER_READ))
