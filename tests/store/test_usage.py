"""Sums over the ledger are what plain Python makes of the same rows, on every database."""

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import (
    Bucket,
    Condition,
    Dimension,
    Entry,
    EntryField,
    EntryPosition,
    EntrySelection,
    LedgerReport,
    Mean,
    ReportGroup,
    Tag,
    UsageTotals,
)
from antiphon.domain.values import replace
from antiphon.store.ledger import SqlEntries, SqlUsage

BEGIN = int(datetime(2025, 11, 20, tzinfo=UTC).timestamp()) * 1000
SPAN = 100 * 24 * 3_600_000
"""Milliseconds; over the end of two months, a year and a week."""
EVERYTHING = EntrySelection(0, 1 << 52)
HOSTILE = ("$", '$."a"', 'a"b', "a'b; DROP TABLE ledger --", "a.b", "[0]", "%", "ключ", "a\\", "")


def entries(count: int, seed: int) -> list[Entry]:
    """Rows of every kind, in no order."""
    draw = random.Random(seed)

    def some(*values: str | None) -> str | None:
        return draw.choice(values)

    def measured() -> int | None:
        return draw.choice([None, 0, draw.randrange(100_000)])

    def entry(number: int) -> Entry:
        moment = BEGIN + draw.randrange(SPAN)
        prompt, output = draw.randrange(5000), draw.randrange(900)
        return Entry(
            id=f"e{draw.getrandbits(64):016x}{number}",
            request_id=f"req-{number // 2}",
            at=moment - moment % draw.choice([1, 1000, 3_600_000, 24 * 3_600_000]),
            project=some("p1", "p2") or "",
            key=some("k1", "k2", "k3") or "",
            user=some("ann", "bob", None),
            dialect=some("openai", "fireworks") or "",
            operation="/v1/chat/completions",
            asked=some("m", "alias") or "",
            model=some("m", "n*", "n%") or "",
            adapter=some(None, "sha256:0"),
            engine=some("", "llama") or "",
            prompt_tokens=prompt,
            cached_tokens=draw.randrange(prompt + 1),
            output_tokens=output,
            reasoning_tokens=draw.randrange(output + 1),
            source=draw.choice(list(UsageSource)),
            price=some(None, "price_1"),
            cost=draw.choice([0, draw.randrange(10**6), draw.randrange(1 << 62)]),
            currency=some("", "USD") or "",
            status=some("ok", "ok", "cancelled", "aborted", "engine_unavailable", "overloaded") or "",
            queue_ms=measured(),
            ttft_ms=measured(),
            total_ms=measured(),
            end_user=some(None, "", "é", "'; --"),
            parent=some(None, None, "e0"),
            tags={name: draw.choice(["x", "y", ""]) for name in draw.sample(HOSTILE, draw.randrange(4))},
        )

    return [entry(number) for number in range(count)]


# --- the reference ---


def value(entry: Entry, of: Dimension) -> str | int | None:
    if isinstance(of, Tag):
        return entry.tags.get(of.name)
    if isinstance(of, EntryField):
        found = getattr(entry, of)
        return None if found is None else str(found)
    begins = datetime.fromtimestamp(entry.at / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    if of is not Bucket.HOUR:
        begins = begins.replace(hour=0)
    if of is Bucket.WEEK:
        begins -= timedelta(days=begins.weekday())
    if of is Bucket.MONTH:
        begins = begins.replace(day=1)
    return int(begins.timestamp())


def is_in(entry: Entry, chosen: EntrySelection) -> bool:
    return chosen.since <= entry.at < chosen.until and all(
        (value(entry, each.dimension) or None) == (each.value or None) for each in chosen.conditions
    )


def totals(found: Sequence[Entry]) -> UsageTotals:
    requests = [each for each in found if each.parent is None]

    def mean(name: str) -> Mean:
        said = [getattr(each, name) for each in requests if getattr(each, name) is not None]
        return Mean(sum(said), len(said))

    def count(*statuses: str) -> int:
        return sum(each.status in statuses for each in requests)

    return UsageTotals(
        requests=len(requests),
        ok=count("ok"),
        cancelled=count("cancelled"),
        aborted=count("aborted"),
        failed=count("engine_unavailable", "overloaded"),
        unpriced=sum(each.price is None for each in found),
        prompt_tokens=sum(each.prompt_tokens for each in found),
        cached_tokens=sum(each.cached_tokens for each in found),
        output_tokens=sum(each.output_tokens for each in found),
        reasoning_tokens=sum(each.reasoning_tokens for each in found),
        cost=sum(each.cost for each in found),
        queue_ms=mean("queue_ms"),
        ttft_ms=mean("ttft_ms"),
        total_ms=mean("total_ms"),
    )


def report(rows: Sequence[Entry], chosen: EntrySelection, by: Sequence[Dimension]) -> LedgerReport:
    found = [each for each in rows if is_in(each, chosen)]
    groups: dict[tuple[str | int | None, ...], list[Entry]] = {}
    for each in found:
        groups.setdefault(tuple(value(each, of) for of in by), []).append(each)
    if not by:
        return LedgerReport(totals(found))

    def place(group: ReportGroup) -> tuple[Any, ...]:
        buckets = [said for said, of in zip(group.values, by, strict=True) if isinstance(of, Bucket)]
        rest = [(said is not None, said) for said in group.values]
        return buckets, -group.totals.requests, rest

    made = [ReportGroup(values, totals(those)) for values, those in groups.items()]
    return LedgerReport(totals(found), tuple(sorted(made, key=place)))


# --- against it ---

ROWS = entries(600, seed=7)


@pytest.fixture
def usage(database):
    SqlEntries(database).add(ROWS)
    return SqlUsage(database)


def selections() -> Iterator[EntrySelection]:
    yield EVERYTHING
    middle = ROWS[5].at
    yield EntrySelection(BEGIN, middle)
    yield EntrySelection(middle, BEGIN + SPAN)
    yield EntrySelection(middle, middle + 1)
    yield EntrySelection(middle, middle)
    yield EntrySelection(0, 1 << 52, (Condition(EntryField.PROJECT, "p1"), Condition(EntryField.USER, "ann")))
    yield EntrySelection(0, 1 << 52, (Condition(EntryField.USER, None), Condition(EntryField.MODEL, "n%")))
    yield EntrySelection(0, 1 << 52, (Condition(EntryField.USER, "ann"), Condition(EntryField.USER, "bob")))
    yield EntrySelection(0, 1 << 52, (Condition(EntryField.END_USER, ""),))
    yield EntrySelection(0, 1 << 52, (Condition(EntryField.END_USER, "'; --"),))
    for name in HOSTILE:
        yield EntrySelection(0, 1 << 52, (Condition(Tag(name), "x"),))
    yield EntrySelection(0, 1 << 52, (Condition(Tag("$"), None), Condition(EntryField.STATUS, "ok")))


def groupings() -> Iterator[tuple[Dimension, ...]]:
    yield ()
    yield from ((each,) for each in (*EntryField, *Bucket))
    yield from ((Tag(name),) for name in HOSTILE)
    yield (Bucket.DAY, EntryField.MODEL)
    yield (EntryField.PROJECT, Bucket.MONTH, EntryField.USER)
    yield (Tag("$"), Bucket.WEEK, Tag("a.b"), EntryField.STATUS)


def test_sums_are_what_plain_python_makes_of_the_rows(usage):
    for chosen in selections():
        assert usage.report(chosen, (), 1) == report(ROWS, chosen, ())
    for by in groupings():
        expected = report(ROWS, EVERYTHING, by)
        found = usage.report(EVERYTHING, by, 10_000)
        assert found.total == expected.total, by
        assert set(found.groups) == set(expected.groups), by
        assert not found.has_more_groups


def test_groups_come_by_time_and_then_by_their_requests(usage):
    for by in ((Bucket.MONTH,), (EntryField.MODEL,), (EntryField.PROJECT, Bucket.WEEK), (EntryField.USER,)):
        expected = report(ROWS, EVERYTHING, by)
        assert list(usage.report(EVERYTHING, by, 10_000).groups) == list(expected.groups), by


def test_what_is_not_listed_is_said_and_counts(usage):
    whole = usage.report(EVERYTHING, (EntryField.KEY,), 3)
    assert (len(whole.groups), whole.has_more_groups) == (3, False)
    cut = usage.report(EVERYTHING, (EntryField.KEY,), 2)
    assert (cut.groups, cut.has_more_groups, cut.total) == (whole.groups[:2], True, whole.total)


def test_entries_come_once_each_by_any_pages(usage):
    expected = sorted(ROWS, key=lambda each: (each.at, each.id))
    for chosen in selections():
        wanted = [each for each in expected if is_in(each, chosen)]
        for size in (7, 1000) if chosen is EVERYTHING else (1 if len(wanted) < 20 else 100,):
            assert list(walked(usage, chosen, size)) == wanted


def test_pages_are_sure_where_many_begin_at_once(database):
    rows = [entry_at(77, f"e{number}") for number in range(30)]
    SqlEntries(database).add(rows)
    found = [each.id for each in walked(SqlUsage(database), EVERYTHING, 4)]
    assert sorted(found) == sorted(each.id for each in rows)


def test_what_no_database_holds_is_found_as_it_was_kept(database):
    odd = "a\0\ud800"
    row = replace(entry_at(5, "e1"), end_user=odd, tags={odd: odd, "b": "c"})
    SqlEntries(database).add([row, entry_at(6, "e2")])
    usage = SqlUsage(database)
    for condition in (Condition(EntryField.END_USER, odd), Condition(Tag(odd), odd)):
        chosen = EntrySelection(0, 1 << 52, (condition,))
        assert [each.id for each in usage.load_entries(chosen, 10)] == ["e1"]
        assert usage.report(chosen, (Tag(odd),), 10).total.requests == 1
    assert (
        usage.report(EntrySelection(0, 1 << 52, (Condition(Tag("\0"), "\0"),)), (), 1).total == UsageTotals()
    )


def test_an_empty_ledger_sums_to_nothing(database):
    usage = SqlUsage(database)
    assert usage.report(EVERYTHING, (), 1) == LedgerReport(UsageTotals())
    assert usage.report(EVERYTHING, (EntryField.MODEL,), 1) == LedgerReport(UsageTotals())
    assert usage.load_entries(EVERYTHING, 5) == []


def test_memory_is_that_of_a_page_however_many_rows_there_are(database):
    store, usage = SqlEntries(database), SqlUsage(database)

    def peak() -> int:
        tracemalloc.start()
        try:
            for _ in walked(usage, EVERYTHING, 200):
                pass
            usage.report(EVERYTHING, (EntryField.MODEL, Bucket.DAY), 1000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    store.add([entry_at(at, f"a{at}") for at in range(400)])
    few = peak()
    store.add([entry_at(at, f"a{at}") for at in range(400, 2_000)])
    assert peak() < 1.3 * few


def walked(usage: SqlUsage, chosen: EntrySelection, size: int) -> Iterator[Entry]:
    after: EntryPosition | None = None
    while page := usage.load_entries(chosen, size, after):
        yield from page
        after = EntryPosition.from_entry(page[-1])


def entry_at(at: int, id_: str) -> Entry:
    return Entry(id_, "req", at, "p", "k", None, "openai", "/v1/completions", "m", "m", tags={"a": "b" * 300})
