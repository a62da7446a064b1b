"""Kept responses, in SQLite, in PostgreSQL and in memory."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

from antiphon.domain.stored_responses import MAX_LINKS
from antiphon.domain.tenancy import Project
from antiphon.errors import StoreUnavailable
from antiphon.services.response_memory import ResponseMemory
from antiphon.services.responses import ResponseKeeper, ResponseLimits
from antiphon.store import schema
from antiphon.store.base import ChangeAuthor
from antiphon.store.database import Database
from antiphon.store.request_log import SqlRecords
from antiphon.store.responses import MOST_RECENT, READ_AT_ONCE, READERS, SqlResponses
from antiphon_testing.scripted_engine import FakeClock
from tests.support.kept_responses import NOW, keep, make_actor, make_response
from tests.support.prepared_databases import lend_prepared
from tests.support.stores import open_new_store

ROOM = 1 << 20


@pytest.fixture
def kept(database, tenancy):
    for name in ("one", "two"):
        tenancy.add_project(Project(name, name, 5), ChangeAuthor("operator", 5, tenancy.load_revision()))
    responses = SqlResponses(database, ROOM)
    yield responses
    responses.close()


@pytest.fixture(scope="module")
def shared_postgresql(cluster, spare_databases):
    """One connected database for many tests, of which each uses few tables."""
    with lend_prepared(cluster, spare_databases) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture
def file(tmp_path):
    """A database in SQLite."""
    with closing(open_new_store(tmp_path / "file.db")) as database:
        yield database


@contextmanager
def open_emptied(request, kind):
    """Without projects: responses need none, unless they are erased."""
    database = request.getfixturevalue("file" if kind == "sqlite" else "shared_postgresql")
    with database.writing() as connection:
        for table in (schema.responses, schema.response_totals):
            connection.execute(table.delete())
    with closing(SqlResponses(database, ROOM)) as responses:
        yield responses


@pytest.fixture
def filed(file):
    with closing(SqlResponses(file, ROOM)) as responses:
        yield responses


@pytest.fixture(params=["sqlite", "postgresql"])
def stored(request):
    with open_emptied(request, request.param) as responses:
        yield responses


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def backend(request):
    if request.param == "memory":
        yield ResponseMemory(ROOM)
    else:
        with open_emptied(request, request.param) as responses:
            yield responses


def read_total(database, project="one"):
    with database.reading() as connection:
        total = sa.select(schema.response_totals.c.bytes).where(schema.response_totals.c.project == project)
        size = sa.select(sa.func.sum(schema.responses.c.size)).where(schema.responses.c.project == project)
        return connection.execute(total).scalar(), connection.execute(size).scalar()


async def test_a_response_is_found_whole_by_its_project_alone(backend):
    response = make_response("a", text="one's \u20ac \\u0000")
    assert await backend.add(keep(response), NOW)
    assert await backend.find("one", "resp_a", NOW) == response
    for project, id_ in (("two", "resp_a"), ("one", "resp_b"), ("one", "msg_a")):
        assert await backend.find(project, id_, NOW) is None
        assert (await backend.find_chain(project, id_, NOW, ROOM)).missing == id_
        assert not await backend.remove(project, id_)
    for project in ("two", "three"):
        assert await backend.find_items(project, ("msg_a", "msg_a_in"), NOW, ROOM) == {}
    assert await backend.find("one", "resp_a", NOW) == response


async def test_a_chain_has_all_items_the_oldest_first(backend):
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        assert await backend.add(keep(make_response(name, previous)), NOW)
    chain = await backend.find_chain("one", "resp_c", NOW, ROOM)
    assert [item["id"] for array in chain.arrays for item in json.loads(array)] == [
        "msg_a_in", "msg_a", "msg_b_in", "msg_b", "msg_c_in", "msg_c",
    ]  # fmt: skip
    assert await backend.remove("one", "resp_a")
    broken = await backend.find_chain("one", "resp_c", NOW, ROOM)
    assert broken.missing == "resp_a" and broken.arrays == ()
    assert await backend.find("one", "resp_c", NOW) is not None


async def test_a_chain_is_as_long_as_its_bounds(backend):
    one = make_response("x0", text="t" * 50)
    size = len(one.input) + len(one.output)
    for number in range(12):
        previous = f"x{number - 1}" if number else None
        await backend.add(keep(make_response(f"x{number}", previous, text="t" * 50)), NOW)
    assert len((await backend.find_chain("one", "resp_x9", NOW, 10 * size)).arrays) == 20
    too_long = await backend.find_chain("one", "resp_x9", NOW, 10 * size - 1)
    assert too_long.is_too_long and too_long.arrays == ()


async def test_a_chain_has_at_most_a_thousand_links(stored):
    rows = [
        {"id": f"resp_{number}", "project": "one", "created": NOW, "expires": NOW + 1, "size": 4,
         "previous": f"resp_{number - 1}" if number else None, "input": b"[]", "output": b"[]", "body": b""}
        for number in range(MAX_LINKS + 5)
    ]  # fmt: skip
    with stored._database.writing() as connection:
        connection.execute(schema.responses.insert(), rows)
    longest = await stored.find_chain("one", f"resp_{MAX_LINKS - 1}", NOW, ROOM)
    assert len(longest.arrays) == 2 * MAX_LINKS and not longest.is_too_long
    assert (await stored.find_chain("one", f"resp_{MAX_LINKS}", NOW, ROOM)).is_too_long
    assert (await stored.find_chain("one", f"resp_{MAX_LINKS + 4}", NOW, ROOM)).is_too_long


async def test_an_item_is_found_in_the_latest_response_that_has_it(backend):
    for name, text in (("a", "first"), ("b", "second")):
        repeated = make_response("same", text=text)
        ids = make_response(name, created=NOW + (name == "b"))
        await backend.add(
            keep(ids.__class__(ids.id, ids.created, None, repeated.input, ids.output, b"{}")), NOW
        )
    items = await backend.find_items("one", ("msg_same_in", "msg_b", "msg_a", "msg_none"), NOW, ROOM)
    assert {id_: json.loads(item)["text"] for id_, item in items.items()} == {
        "msg_same_in": "second", "msg_a": "hello", "msg_b": "hello",
    }  # fmt: skip
    await backend.remove("one", "resp_b")
    items = await backend.find_items("one", ("msg_same_in", "msg_b"), NOW, ROOM)
    assert {id_: json.loads(item)["text"] for id_, item in items.items()} == {"msg_same_in": "first"}


async def test_items_beyond_the_bound_are_empty(backend):
    for name in "abc":
        await backend.add(keep(make_response(name, text=name * 1000)), NOW)
    items = await backend.find_items("one", ("msg_a", "msg_b", "msg_c"), NOW, 1500)
    assert min(map(len, items.values())) == 0
    assert sum(map(len, items.values())) <= 1500


async def test_what_has_expired_is_not_found(backend):
    await backend.add(keep(make_response("a"), expires=NOW + 1), NOW)
    await backend.add(keep(make_response("b", "a"), expires=NOW + 9), NOW)
    later = NOW + 1
    assert await backend.find("one", "resp_a", later) is None
    assert (await backend.find_chain("one", "resp_b", later, ROOM)).missing == "resp_a"
    assert set(await backend.find_items("one", ("msg_a", "msg_b"), later, ROOM)) == {"msg_b"}


async def test_the_oldest_of_a_project_give_way(backend):
    text = "t" * 100_000
    await backend.add(keep(make_response("other", text=text), "two"), NOW)
    for number in range(12):
        assert await backend.add(keep(make_response(f"r{number}", text=text, created=NOW + number)), NOW)
    found = [number for number in range(12) if await backend.find("one", f"resp_r{number}", NOW)]
    assert found == list(range(7, 12))
    assert await backend.find_items("one", ("msg_r3",), NOW, ROOM) == {}
    assert await backend.find("two", "resp_other", NOW)
    assert not await backend.add(keep(make_response("large", text="t" * ROOM)), NOW)
    assert await backend.find("one", "resp_r11", NOW), "nothing gives way for what is never kept"


async def test_a_response_that_is_added_again_is_there_once(backend):
    response = make_response("a")
    assert await backend.add(keep(response), NOW)
    assert await backend.add(keep(response), NOW)
    assert await backend.find("one", "resp_a", NOW) == response
    if isinstance(backend, SqlResponses):
        assert read_total(backend._database) == (response.size, response.size)


async def test_expired_responses_are_swept_and_leave_nothing(kept, database):
    stays = make_response("b")
    await kept.add(keep(make_response("a"), expires=NOW), NOW - 1)
    await kept.add(keep(stays, expires=NOW + 1), NOW - 1)
    SqlRecords(database).expire(NOW)
    with database.reading() as connection:
        assert connection.execute(sa.select(schema.responses.c.id)).scalars().all() == ["resp_b"]
        assert set(connection.execute(sa.select(schema.response_items.c.response)).scalars()) == {"resp_b"}
    assert read_total(database) == (stays.size, stays.size)


async def test_an_erased_project_keeps_nothing_that_began_before(kept, database, tenancy):
    await kept.add(keep(make_response("a")), NOW)
    await kept.add(keep(make_response("b"), "two"), NOW)
    author = ChangeAuthor("ann", 9, tenancy.load_revision())
    SqlRecords(database).erase("one", NOW * 1000 + 500, author)
    assert await kept.find("one", "resp_a", NOW) is None
    assert await kept.find_items("one", ("msg_a",), NOW, ROOM) == {}
    assert await kept.find("two", "resp_b", NOW)
    assert not await kept.add(keep(make_response("late", created=NOW)), NOW)
    assert await kept.add(keep(make_response("new", created=NOW + 1)), NOW)
    (entry,) = [each for each in tenancy.load_audit_entries(9) if each.action == "project.erase_requests"]
    assert json.loads(entry.detail) == {"removed": 0, "responses": 1}


def test_removed_texts_leave_the_files_of_sqlite(filed, file):
    asyncio.run(filed.add(keep(make_response("a", text="canary-text")), NOW))
    SqlRecords(file).expire(NOW - 50)
    assert b"canary-text" in file.file.read_bytes()
    asyncio.run(filed.remove("one", "resp_a"))
    SqlRecords(file).expire(NOW - 50)
    paths = [file.file, file.file.with_name(f"{file.file.name}-wal")]
    assert all(b"canary-text" not in path.read_bytes() for path in paths if path.exists())


async def test_answers_that_end_together_share_a_write(filed, file):
    begun, go = threading.Event(), threading.Event()
    commits = []
    sa.event.listen(file._writer, "commit", lambda _: commits.append(1))

    def hold():
        begun.set()
        go.wait(60)

    filed._writer.submit(hold)
    assert await asyncio.to_thread(begun.wait, 60)
    async with asyncio.TaskGroup() as group:
        adding = [group.create_task(filed.add(keep(make_response(f"r{each}")), NOW)) for each in range(20)]
        await asyncio.sleep(0)
        go.set()
    assert [task.result() for task in adding] == [True] * 20
    assert len(commits) == 1
    assert all([await filed.find("one", f"resp_r{each}", NOW) for each in range(20)])


async def test_an_answer_does_not_wait_for_a_store_that_is_stuck(filed):
    begun, go = threading.Event(), threading.Event()

    def hold():
        begun.set()
        go.wait(60)

    filed._writer.submit(hold)
    assert await asyncio.to_thread(begun.wait, 60)
    keeper = ResponseKeeper(filed, ResponseLimits(), FakeClock(wall=float(NOW)), patience=0.05)
    assert not await keeper.save(make_response("a"), make_actor())
    assert keeper.refusals["failed"] == 1
    go.set()
    assert await filed.add(keep(make_response("b")), NOW)
    assert await filed.find("one", "resp_a", NOW) is None, "what was told not to be stored is not"


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_write_that_ends_after_its_answer_is_taken_back(filed, file, is_committed):
    """The answer has said `"store": false` by then."""
    begun, go = threading.Event(), threading.Event()

    def hold(*_):
        begun.set()
        go.wait(60)

    async with asyncio.TaskGroup() as group:
        if not is_committed:
            sa.event.listen(file._writer, "commit", hold)
        adding = group.create_task(filed.add(keep(make_response("a")), NOW))
        await asyncio.sleep(0)
        if is_committed:
            filed._writer.submit(hold)  # behind the write
        assert begun.wait(60)  # the event loop stands still: it does not learn that the write ended
        adding.cancel()
        if not is_committed:
            sa.event.remove(file._writer, "commit", hold)
        go.set()
    assert adding.cancelled()
    assert await filed.add(keep(make_response("b")), NOW)
    assert await filed.find("one", "resp_a", NOW) is None
    assert read_total(file) == (make_response("b").size,) * 2


async def test_a_recent_chain_needs_no_thread_and_is_gone_when_another_process_removes_it(filed, file):
    go = threading.Event()
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        await filed.add(keep(make_response(name, previous)), NOW)
    large = make_response("large", "c", text="t" * (READ_AT_ONCE // 2))
    await filed.add(keep(large), NOW)
    for _ in range(READERS):
        filed._readers.submit(go.wait, 60)
    assert len((await filed.find_chain("one", "resp_c", NOW, ROOM)).arrays) == 6
    assert len((await filed.find_chain("one", "resp_b", NOW, ROOM)).arrays) == 4
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(filed.find_chain("one", id_, NOW, 4 * ROOM)) for id_ in ("resp_x", "resp_large")
        ]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting), "an unknown and a long chain are for a thread"
        go.set()
    assert [len(task.result().arrays) for task in waiting] == [0, 8]
    with (
        closing(Database(f"sqlite:///{file.file}")) as database,
        closing(SqlResponses(database, ROOM)) as other,
    ):
        assert await other.remove("one", "resp_a")
    assert (await filed.find_chain("one", "resp_c", NOW, ROOM)).missing == "resp_a"


async def test_a_process_remembers_a_bounded_number_of_recent_responses(filed):
    for number in range(MOST_RECENT + 10):
        filed._note_use("one", f"resp_{number}", 0, ())
    assert len(filed._recent) == MOST_RECENT and ("one", "resp_9") not in filed._recent


async def test_a_database_that_does_not_answer_says_so(filed, file):
    await filed.add(keep(make_response("a")), NOW)
    with file.writing() as connection:
        connection.execute(sa.text("DROP TABLE response_items"))
    with pytest.raises(StoreUnavailable):
        await filed.add(keep(make_response("b")), NOW)
    assert await filed.find("one", "resp_b", NOW) is None, "nothing of it is there"
    assert await filed.find("one", "resp_a", NOW)


WRITER = """
import asyncio, sys
from antiphon.store.database import Database
from antiphon.store.responses import MOST_RECENT, READ_AT_ONCE, READERS, SqlResponses
from tests.support.kept_responses import NOW, keep, make_response

async def main():
    kept = SqlResponses(Database(sys.argv[1]), 100_000)
    for number in range(100_000):
        names = [f"r{number}_{each}" for each in range(3)]
        made = [keep(make_response(name, text="t" * 3000, created=NOW + number)) for name in names]
        await asyncio.gather(*(kept.add(each, NOW) for each in made))
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_leaves_whole_responses(file):
    command = [sys.executable, "-c", WRITER, f"sqlite:///{file.file}"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < 12:  # old ones give way by now
        pass
    writer.kill()
    confirmed = [int(line) for line in writer.communicate()[0].split()]
    last = max([12, *confirmed])
    with closing(sqlite3.connect(file.file)) as connection:
        total, size = read_total(file)
        assert total == size <= 100_000
        rows = connection.execute("SELECT id, input, output, body FROM responses").fetchall()
        items = connection.execute("SELECT count(*) FROM response_items").fetchone()[0]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert items == 2 * len(rows) and all(json.loads(text) for row in rows for text in row[1:])
    assert {f"resp_r{last}_{each}" for each in range(3)} <= {row[0] for row in rows}
