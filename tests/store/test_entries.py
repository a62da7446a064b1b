"""The ledger's rows: each once, whatever it says, and their sums."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import pytest
import sqlalchemy as sa
from msgspec.structs import fields

from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Amounts
from antiphon.domain.values import replace
from antiphon.store import schema
from antiphon.store.database import Database
from antiphon.store.ledger import INDEXED, MAX_INDEXED_LENGTH, SqlEntries
from tests.support.ledger_doubles import ENTRY
from tests.support.references import record_left_open

MINUTE = 60_000


@pytest.fixture
def entries(database):
    return SqlEntries(database)


def rows(database):
    with database.reading() as connection:
        found = connection.execute(sa.select(schema.ledger).order_by("id")).mappings()
        return [dict(row) for row in found]


def test_an_entry_is_kept_with_all_that_it_says(entries, database):
    entries.add([ENTRY])
    (kept,) = rows(database)
    assert json.loads(kept.pop("tags")) == ENTRY.tags
    assert kept == {each.name: getattr(ENTRY, each.name) for each in fields(Entry) if each.name != "tags"}


def test_an_existing_entry_changes_nothing_and_blocks_none(entries, database):
    entries.add([ENTRY])
    entries.add([replace(ENTRY, output_tokens=9_999), replace(ENTRY, id="e2"), replace(ENTRY, id="e2")])
    entries.add([])
    assert [(row["id"], row["output_tokens"]) for row in rows(database)] == [("e1", 20), ("e2", 20)]


def test_many_that_add_the_same_entries_at_once_keep_each_once(url, database):
    together = Barrier(4)
    batch = [replace(ENTRY, id=f"e{number:04}") for number in range(500)]

    def added(backwards):
        with closing(Database(url)) as own:
            together.wait(30)
            SqlEntries(own).add(batch[::-1] if backwards else batch)

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(added, number % 2) for number in range(4)]:
            each.result()
    assert [row["id"] for row in rows(database)] == [entry.id for entry in batch]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 100_000, "'; DROP TABLE ledger; --", ""])
def test_no_text_keeps_an_entry_out(entries, database, text):
    said = dict.fromkeys((*INDEXED, "request_id", "asked", "end_user", "parent", "status"), text)
    entries.add([replace(ENTRY, tags={text: text}, **said), replace(ENTRY, id="e2")])
    kept, other = rows(database)
    assert other["asked"] == "gpt-4o"
    plain = text.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert kept["asked"] == kept["end_user"] == plain
    assert json.loads(kept["tags"]) == {plain: plain}
    assert {kept[name] for name in INDEXED} == {plain[:MAX_INDEXED_LENGTH]}


def test_sums_are_by_time_key_user_project_and_model(entries):
    request = replace(ENTRY, parent=None)
    first, later = request.at, request.at + 10 * MINUTE
    entries.add(
        [
            replace(request, id="old", at=first - 1),
            request,
            replace(request, id="e2", at=first + 1, status="cancelled", cost=1),
            replace(request, id="e3", user=None),
            replace(request, id="e4", model="other", key="key-2"),
            replace(request, id="e5", at=later),
            replace(request, id="e6", at=later, parent="e5"),
        ]
    )
    sums = {(used.at, used.key, used.user, used.model): used for used in entries.sum_usage(first, MINUTE)}
    assert {place: used.amounts for place, used in sums.items()} == {
        (first + 1, "key-1", "ann", "cantor"): Amounts(2, 200, 40, 10**15 + 1),
        (first, "key-1", None, "cantor"): Amounts(1, 100, 20, 10**15),
        (first, "key-2", "ann", "other"): Amounts(1, 100, 20, 10**15),
        (later, "key-1", "ann", "cantor"): Amounts(1, 200, 40, 2 * 10**15),
    }
    assert {used.project for used in sums.values()} == {"default"}
    assert [used.at for used in entries.sum_usage(first, 1)] == sorted(
        [first, first, first, first + 1, later]
    )
    assert [used.at for used in entries.sum_usage(later, 1)] == [later]
    assert list(entries.sum_usage(later + 1, 1)) == []


def test_no_number_keeps_an_entry_out(entries, database):
    entries.add([replace(ENTRY, cost=2**70), replace(ENTRY, id="e2", cost=0)])
    assert [row["cost"] for row in rows(database)] == [2**63 - 1, 0]


def test_no_sum_of_rows_is_too_large_to_be_read(entries):
    """SQLite refuses a sum above 2**63 as an error, and one row's cost can be that large."""
    largest = 2**63 - 1
    entry = replace(ENTRY, parent=None, prompt_tokens=largest, output_tokens=largest, cost=largest)
    entries.add([replace(entry, id=f"e{number}") for number in range(3)])
    (used,) = entries.sum_usage(ENTRY.at, MINUTE)
    assert used.amounts == Amounts(3, 3 * largest, 3 * largest, 3 * largest)


def test_sums_that_nobody_reads_to_their_end_leave_nothing_open(entries):
    entries.add([replace(ENTRY, id=f"e{number}", at=ENTRY.at + number) for number in range(3)])
    with record_left_open() as left_open:
        with closing(entries.sum_usage(0, 1)) as found:
            assert next(found).at == ENTRY.at
        assert next(iter(entries.sum_usage(0, 1))).at == ENTRY.at
    assert [str(each.message) for each in left_open] == []
