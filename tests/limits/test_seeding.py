"""What the ledger knows of a limit."""

import pytest

from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.limits.local import LocalLimiter
from antiphon.limits.seeding import LedgerSeeder
from antiphon.store.ledger import SqlEntries
from antiphon_testing.scripted_engine import FakeClock
from tests.support.limits import NOON, limit
from tests.support.stores import open_new_store


@pytest.fixture
def entries(tmp_path):
    database = open_new_store(tmp_path / "ledger.db")
    yield SqlEntries(database)
    database.close()


def entry(id_: str, ago: float, output: int, **said) -> Entry:
    usual = {"project": "default", "key": "key_1", "user": "user_1", "model": "cantor"}
    return Entry(
        id_, "", int((NOON - ago) * 1_000), dialect="", operation="", asked="", output_tokens=output,
        prompt_tokens=1, **(usual | said),
    )  # fmt: skip


def of(id_: str, subject: Subject, target: str, window=Window.DAY, models=None) -> Limit:
    return Limit(id_, subject, target, Measure.OUTPUT_TOKENS, 10**6, 0, window, models)


async def test_each_limit_counts_its_own_subject_window_and_models(entries):
    entries.add(
        [
            entry("a", 5, 1),
            entry("b", 59, 10),
            entry("c", 70, 100),
            entry("d", 3 * 3600, 1_000, model="other"),
            entry("e", 13 * 3600, 10_000),  # yesterday, and this week
            entry("f", 4 * 24 * 3600, 100_000, key="key_2"),
            entry("g", 6 * 24 * 3600, 400_000, user=None),  # last week, and this month
        ]
    )
    limits = [
        of("key", Subject.KEY, "key_1"),
        of("minute", Subject.KEY, "key_1", Window.MINUTE),
        of("user", Subject.USER, "user_1", Window.WEEK),
        of("project", Subject.PROJECT, "default", Window.MONTH),
        of("model", Subject.MODEL, "cantor", Window.MONTH),
        of("some", Subject.KEY, "key_1", models="can*"),
        of("nobody", Subject.KEY, "key_3"),
    ]
    seeds = LedgerSeeder(entries, lambda: NOON)
    taken = await seeds(limits)
    assert {id_: sum(amount for _, amount in parts) for id_, parts in taken.items()} == {
        "key": 1_111,
        "minute": 11,
        "user": 111_111,
        "project": 511_111,
        "model": 510_111,
        "some": 111,
    }
    limiter = LocalLimiter(FakeClock(wall=NOON), seeds)
    assert [10**6 - each.remaining for each in await limiter.read_status(limits)] == [
        1_111, 11, 111_111, 511_111, 510_111, 111, 0,
    ]  # fmt: skip
    seeds.close()


async def test_what_a_rotated_key_used_counts_for_its_successor(entries):
    entries.add([entry("a", 1, 1), entry("b", 2, 10, key="key_2"), entry("c", 3, 100, key="key_3")])
    seeds = LedgerSeeder(entries, lambda: NOON, families=lambda: {"key_2": "key_1"})
    for target, used in (("key_1", 11), ("key_2", 11), ("key_3", 100)):
        taken = await seeds([of("one", Subject.KEY, target)])
        assert sum(amount for _, amount in taken["one"]) == used
    seeds.close()


async def test_what_a_service_key_used_for_a_user_counts_for_its_project_alone(entries):
    entries.add([entry("a", 1, 1), entry("b", 2, 10, key="key_2", project="other")])
    seeds = LedgerSeeder(entries, lambda: NOON, service_keys=lambda: frozenset({"key_2"}))
    limits = [
        of("user", Subject.USER, "user_1"),
        of("key", Subject.KEY, "key_2"),
        of("project", Subject.PROJECT, "other"),
    ]
    taken = await seeds(limits)
    assert {id_: sum(amount for _, amount in parts) for id_, parts in taken.items()} == {
        "user": 1,
        "key": 10,
        "project": 10,
    }
    seeds.close()


async def test_spooled_entries_reach_the_ledger_before_it_is_read(entries):
    seeds = LedgerSeeder(entries, lambda: NOON, lambda: entries.add([entry("late", 1, 7)]))
    assert await seeds([limit(5, Measure.CONCURRENT)]) == {}
    taken = await seeds([limit(5, Measure.REQUESTS, Window.DAY)])
    assert list(taken["limit_one"]) == [(NOON - 1, 1)]
    seeds.close()
