"""Usage over the wire: who sees what of it, sums, pages, and files that come whole or not at all."""

import asyncio
import csv
import io
import json
import queue
import threading
from decimal import Decimal

import jsonschema
import pytest

from antiphon.auth.base import RequestedScope
from antiphon.domain.ledger import EntryField, EntrySelection
from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.domain.values import replace
from antiphon.errors import StoreUnavailable
from antiphon.http.admin.usage_cards import format_cell
from antiphon.store import ledger
from tests.support.http_server import KEY, request_bytes
from tests.support.keyed_server import OPERATOR, PLAIN, ROOT, keyed
from tests.support.waiting import await_until

USAGE, ENTRIES = f"{ROOT}/usage", f"{ROOT}/usage/entries"
HOUR = 3600


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


def keep(server, *entries):
    """Puts entries into the ledger: each is `e0`, `e1`, ... and began some hours ago."""
    now = int(server.edge.clock.wall()) * 1000
    made = [
        replace(each, id=each.id or f"e{number}", at=each.at or now - (len(entries) - number) * 1000)
        for number, each in enumerate(entries)
    ]
    server.entries.add(made)
    return made


async def actor(server, key, **chosen):
    for verifier in server.edge.verifiers:
        if (found := await verifier.verify(key, RequestedScope(**chosen))) is not None:
            return found
    raise AssertionError("nobody knows the key")


async def seen(server, key, **how):
    """The ids of the entries that a key sees, or the status of the refusal; and the sum of the requests."""
    listed = await server.asked(key, ENTRIES, **how)
    summed = await server.asked(key, USAGE, **how)
    ids = {each["id"] for each in listed.json()["data"]} if listed.status == 200 else listed.status
    return ids, summed.json()["total"]["requests"] if summed.status == 200 else summed.status


async def test_everybody_sees_their_part(server):
    other = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Other"})).json()["id"]
    ann, annas = await server.person(ProjectRole.MEMBER)
    bob, bobs = await server.person(ProjectRole.MEMBER)
    _, owners = await server.person(ProjectRole.OWNER)
    _, viewers = await server.person(ProjectRole.VIEWER)
    _, strangers = await server.person(ProjectRole.OWNER, other)
    bot = await server.token(KeyKind.SERVICE, project="default")
    bots, environments = (await actor(server, bot)).id, (await actor(server, KEY)).id
    keep(
        server,
        replace(PLAIN, user=ann, key="key_of_ann"),
        replace(PLAIN, user=bob, key="key_of_bob"),
        replace(PLAIN, key=bots),
        replace(PLAIN, key=bots, user=ann),
        replace(PLAIN, project=other, user=ann),
        replace(PLAIN, key=environments),
    )
    everything = {"e0", "e1", "e2", "e3", "e5"}
    assert await seen(server, server.admin) == (everything | {"e4"}, 6)
    assert await seen(server, owners) == (everything, 5)
    assert await seen(server, viewers) == (403, 5)
    assert await seen(server, annas) == ({"e0", "e3"}, 2)
    assert await seen(server, bobs) == ({"e1"}, 1)
    assert await seen(server, bot) == ({"e2", "e3"}, 2)
    assert await seen(server, bot, headers={"x-user-id": ann}) == ({"e3"}, 1)
    assert await seen(server, KEY) == ({"e5"}, 1)
    assert await seen(server, strangers) == ({"e4"}, 1)
    await server.tenants.put_member(OPERATOR, other, ann, ProjectRole.OWNER)
    assert await seen(server, annas, headers={"x-project-id": other}) == ({"e4"}, 1)
    assert await seen(server, annas, headers={"x-project-id": "default"}) == ({"e0", "e3"}, 2)


async def test_no_filter_opens_what_is_not_seen(server):
    other = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Other"})).json()["id"]
    ann, annas = await server.person(ProjectRole.MEMBER)
    bob, _ = await server.person(ProjectRole.MEMBER)
    _, owners = await server.person(ProjectRole.OWNER)
    bot = await server.token(KeyKind.SERVICE, project="default")
    keep(server, replace(PLAIN, user=bob), replace(PLAIN, project=other, user=ann), replace(PLAIN, user=ann))
    for key in (annas, owners, bot):
        for project in (other, "nowhere", ""):
            for path in (USAGE, ENTRIES):
                reply = await server.asked(key, f"{path}?project={project}")
                assert (reply.status, reply.error["code"]) == (404, "not_found"), (path, project)
    assert (await server.asked(annas, f"{USAGE}?user={bob}")).json()["total"]["requests"] == 0
    assert (await server.asked(annas, f"{ENTRIES}?user={bob}")).json()["data"] == []
    assert (await server.asked(bot, f"{USAGE}?key=key_x")).json()["total"]["requests"] == 0
    assert (await server.asked(owners, f"{USAGE}?project=default")).json()["total"]["requests"] == 2
    for path in (USAGE, f"{USAGE}/entries"):  # the operator too: a typing error is no project without usage
        reply = await server.asked(server.admin, f"{path}?project=nope")
        assert (reply.status, reply.error["message"]) == (404, "there is no project nope")
        assert (await server.asked(server.admin, f"{path}?project=")).status == 200
    await server.tenants.put_member(OPERATOR, other, ann, ProjectRole.OWNER)
    chosen = {"headers": {"x-project-id": "default"}}
    reply = await server.asked(annas, f"{USAGE}?project={other}", **chosen)
    assert reply.status == 403 and "X-PROJECT-ID" in reply.error["message"]


async def test_a_viewer_sees_sums_but_not_whose(server):
    _, viewers = await server.person(ProjectRole.VIEWER)
    keep(server, replace(PLAIN, user="ann", tags={"who": "ann"}))
    for name in ("model", "day", "status", "engine"):
        assert (await server.asked(viewers, f"{USAGE}?by={name}")).json()["data"][0]["requests"] == 1
    for query in ("by=user", "by=model,key", "by=end_user", "by=tag:who", "user=ann", "tag:who=ann", "key=k"):
        assert (await server.asked(viewers, f"{USAGE}?{query}")).status == 403, query
    for shape in ("json", "csv", "jsonl"):
        assert (await server.asked(viewers, f"{ENTRIES}?format={shape}")).status == 403


async def test_sums_say_everything_exactly(server):
    body = {"models": "*", "currency": "USD", "input": "1", "output": "2"}
    assert (await server.asked(server.admin, f"{ROOT}/prices", body)).status == 201
    large = (1 << 53) + 1
    first = replace(PLAIN, prompt_tokens=large, cached_tokens=3, output_tokens=5, reasoning_tokens=2)
    first = replace(first, price="p", cost=large, currency="USD", queue_ms=1, ttft_ms=2, total_ms=10)
    keep(server, first, replace(PLAIN, status="overloaded", total_ms=11), replace(PLAIN, status="cancelled"))
    said = (await server.asked(server.admin, f"{USAGE}?by=status,tag:x")).json()
    assert said["currency"] == "USD" and said["by"] == ["status", "tag:x"] and said["more"] is False
    assert said["until"] - said["since"] == 30 * 24 * HOUR
    assert said["total"] == {
        "requests": 3,
        "ok": 1,
        "cancelled": 1,
        "aborted": 0,
        "failed": 1,
        "unpriced": 2,
        "prompt_tokens": large,
        "cached_tokens": 3,
        "output_tokens": 5,
        "reasoning_tokens": 2,
        "cost": "9007199.254740993",
        "cost_nano": large,
        "mean_queue_ms": 1.0,
        "mean_ttft_ms": 2.0,
        "mean_total_ms": 10.5,
    }
    assert Decimal(said["total"]["cost"]) * 10**9 == said["total"]["cost_nano"]
    assert {each["by"]["status"]: each["requests"] for each in said["data"]} == {
        "ok": 1,
        "overloaded": 1,
        "cancelled": 1,
    }


async def test_a_time_series_and_a_filter(server):
    day = 24 * HOUR * 1000
    keep(server, *(replace(PLAIN, at=number * day + 5, model="mn"[number % 2]) for number in range(1, 7)))
    path = f"{USAGE}?since=0&until={7 * 24 * HOUR}&by=day&model=m"
    said = (await server.asked(server.admin, path)).json()
    assert [each["by"] for each in said["data"]] == [{"day": number * day // 1000} for number in (2, 4, 6)]
    few = (await server.asked(server.admin, f"{path}&limit=2")).json()
    assert (few["data"], few["more"], few["total"]) == (said["data"][:2], True, said["total"])


async def test_pages_hold_every_entry_once(server):
    kept = keep(server, *(replace(PLAIN, at=1_000_000 + number // 3) for number in range(10)))
    found, after = [], ""
    while after is not None:
        page = (await server.asked(server.admin, f"{ENTRIES}?since=0&limit=4{after}")).json()
        found += [each["id"] for each in page["data"]]
        after = page["next"] and f"&after={page['next']}"
    assert found == [each.id for each in kept]


@pytest.mark.parametrize("shape", ["csv", "jsonl"])
async def test_a_file_holds_every_entry_in_full(server, shape, monkeypatch):
    monkeypatch.setattr("antiphon.http.admin.usage.CHUNK_ENTRIES", 3)
    odd = replace(
        PLAIN,
        request_id='a,"b"\r\nc',
        cost=(1 << 53) + 1,
        tags={"team": "x,y", "=1": "=2"},
        end_user="é",
        ttft_ms=7,
        routes='[{"route":"x/\\u00fc","error":"provider_failed","ms":3},{"route":"y","error":null,"ms":4}]',
    )
    tried = json.loads(odd.routes)
    kept = keep(server, odd, *[PLAIN] * 9)
    reply = await server.asked(server.admin, f"{ENTRIES}?format={shape}")
    assert reply.headers["content-disposition"].startswith('attachment; filename="entries-')
    assert reply.headers["content-disposition"].endswith(f'.{shape}"')
    text = reply.body.decode()
    if shape == "csv":
        assert reply.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        assert rows[0]["user"] == "" and json.loads(rows[0]["tags"]) == odd.tags
        assert json.loads(rows[0]["routes"]) == tried and json.loads(rows[1]["routes"]) == []
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows[0]["user"] is None and rows[0]["tags"] == odd.tags
        assert rows[0]["routes"] == tried and rows[1]["routes"] == []
    assert [row["id"] for row in rows] == [each.id for each in kept]
    assert (rows[0]["request_id"], rows[0]["end_user"]) == (odd.request_id, "é")
    assert int(rows[0]["cost_nano"]) == odd.cost and int(rows[0]["ttft_ms"]) == 7


@pytest.mark.parametrize("kept", [0, 2, 3, 4])
async def test_a_file_ends_where_the_entries_do(server, kept, monkeypatch):
    monkeypatch.setattr("antiphon.http.admin.usage.CHUNK_ENTRIES", 2)
    keep(server, *[PLAIN] * kept)
    body = (await server.asked(server.admin, f"{ENTRIES}?format=csv")).body.decode()
    assert len(body.splitlines()) == kept + 1
    assert body.startswith("id,request_id,parent,at_ms,time,")


async def test_sums_as_files(server):
    keep(server, PLAIN, replace(PLAIN, model="=cmd()"), replace(PLAIN, model="=cmd()"))
    reply = await server.asked(server.admin, f"{USAGE}?by=model,tag:=a&format=csv")
    rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert [(row["model"], row["tag:=a"], row["requests"]) for row in rows] == [
        ("'=cmd()", "", "2"),
        ("m", "", "1"),
    ]
    lines = (await server.asked(server.admin, f"{USAGE}?by=model&format=jsonl")).body.decode().splitlines()
    assert [json.loads(line)["by"]["model"] for line in lines] == ["=cmd()", "m"]
    whole = (await server.asked(server.admin, f"{USAGE}?format=csv")).body.decode().splitlines()
    assert whole[0].split(",")[0] == "requests" and whole[1].split(",")[0] == "3"


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "\x7f",
        "＝1",
        "\u00a0@x",
        "\x1b",
    ],
)
async def test_no_cell_is_a_formula(server, text):
    assert format_cell(text) == "'" + text
    keep(server, replace(PLAIN, end_user=text, request_id=text, tags={text: text}))
    for query in ("", "&since=0"):
        reply = await server.asked(server.admin, f"{ENTRIES}?format=csv{query}")
        row = next(csv.DictReader(io.StringIO(reply.body.decode(), newline="")))
        assert row["end_user"][0] == row["request_id"][0] == "'"
        assert row["tags"][0] == "{"
    for harmless in ("a=1", "", "m", "{", "é", "1-2"):
        assert format_cell(harmless) == harmless
    assert (format_cell(-1), format_cell(0.5), format_cell(None)) == ("-1", "0.5", "")


async def test_more_groups_than_are_given_are_no_file(server, monkeypatch):
    monkeypatch.setattr("antiphon.http.admin.usage.MAX_GROUPS", 2)
    keep(server, *(replace(PLAIN, model=name) for name in "abc"))
    for shape in ("csv", "jsonl"):
        reply = await server.asked(server.admin, f"{USAGE}?by=model&format={shape}")
        assert (reply.status, reply.error["param"]) == (400, "by")
        assert (await server.asked(server.admin, f"{USAGE}?by=model&limit=1&format={shape}")).status == 200
    assert (await server.asked(server.admin, f"{USAGE}?by=model")).json()["more"] is True


NONSENSE = (
    (f"{USAGE}?by=prompt", "by"),
    (f"{USAGE}?by=model,model", "by"),
    (f"{USAGE}?by=tag:", "by"),
    (f"{USAGE}?by=tag:a,tag:b,tag:c,tag:d,tag:e,tag:f,tag:g", "by"),
    (f"{USAGE}?since=x", "since"),
    (f"{USAGE}?since=-1", "since"),
    (f"{USAGE}?since=5&until=5", "since"),
    (f"{USAGE}?since=99999999999", "since"),
    (f"{USAGE}?until=0", "until"),
    (f"{USAGE}?until=999999999999999999", "until"),
    (f"{USAGE}?limit=0", "limit"),
    (f"{USAGE}?limit=10001", "limit"),
    (f"{USAGE}?format=xml", "format"),
    (f"{USAGE}?modle=m", "modle"),
    (f"{USAGE}?after=1", "after"),
    (f"{USAGE}?tag:=x", "tag:"),
    (f"{USAGE}?model=a&model=b", "model"),
    (f"{USAGE}?hour=1", "hour"),
    (f"{USAGE}?model={'m' * 1001}", "model"),
    (f"{ENTRIES}?by=model", "by"),
    (f"{ENTRIES}?after=x", "after"),
    (f"{ENTRIES}?after=5", "after"),
    (f"{ENTRIES}?after={'9' * 30}.e", "after"),
    (f"{ENTRIES}?limit=1001", "limit"),
    (f"{ENTRIES}?limit=5&format=csv", "limit"),
)


async def test_what_makes_no_sense_is_refused_by_name(server):
    for path, param in NONSENSE:
        reply = await server.asked(server.admin, path)
        assert (reply.status, reply.error["param"]) == (400, param), path


async def test_hostile_values_choose_nothing(server):
    keep(server, PLAIN)
    for value in ("%00", "%ff", "%ed%a0%80", "';%20DROP%20TABLE%20ledger%20--", "%25", "$.a", "%22"):
        for query in (f"model={value}", f"tag:{value}=x", f"by=tag:{value}&model={value}"):
            reply = await server.asked(server.admin, f"{USAGE}?{query}")
            assert (reply.status, reply.json()["total"]["requests"]) == (200, 0), query
    assert (await server.asked(server.admin, USAGE)).json()["total"]["requests"] == 1


async def test_a_store_that_fails_midway_breaks_the_file_off(server, monkeypatch):
    monkeypatch.setattr("antiphon.http.admin.usage.CHUNK_ENTRIES", 2)
    keep(server, *[PLAIN] * 5)
    usage = server.reading._usage
    plain, calls = usage.load_entries, []

    def failing(chosen, most, after=None):
        calls.append(after)
        if len(calls) > 1:
            raise StoreUnavailable("gone")
        return plain(chosen, most, after)

    monkeypatch.setattr(usage, "load_entries", failing)
    async with server.line() as line:
        headers = {"authorization": f"Bearer {server.admin}"}
        await line.send(request_bytes(f"{ENTRIES}?format=jsonl", headers=headers))
        said = await line.rest()
    assert said.startswith(b"HTTP/1.1 200") and b'"e1"' in said
    assert not said.endswith(b"0\r\n\r\n")
    monkeypatch.setattr(usage, "load_entries", lambda *_: failing(None, 0))
    reply = await server.asked(server.admin, f"{ENTRIES}?format=jsonl")
    assert (reply.status, reply.error["code"]) == (503, "store_unavailable")


async def test_a_long_read_holds_nobody_up(server, monkeypatch):
    """While every thread that reads is busy, all else is answered."""
    entered, go = threading.Semaphore(0), threading.Event()
    usage = server.reading._usage
    plain = usage.report

    def slow(*asked):
        entered.release()
        assert go.wait(60)
        return plain(*asked)

    monkeypatch.setattr(usage, "report", slow)
    _, member = await server.person(ProjectRole.MEMBER)
    async with asyncio.TaskGroup() as group:
        keys = [server.admin, member] * 4
        reads = [group.create_task(server.asked(key, USAGE)) for key in keys]
        for _ in range(3):
            assert await asyncio.to_thread(entered.acquire, timeout=60)
        assert (await server.asked(server.admin, f"{ROOT}/projects", {"name": "P"})).status == 201
        assert (await server.asked(server.admin, "/v1/models")).status == 200
        assert not any(read.done() for read in reads)
        go.set()
    assert [read.result().status for read in reads] == [200] * 8


class HeldReads:
    """The store's reads: each waits until the test lets it end. Knows the project of each, in their order."""

    def __init__(self, usage):
        self.begun: queue.Queue[str] = queue.Queue()
        self.ends = threading.Semaphore(0)
        self._read = usage.report

    def report(self, selection, dimensions, max_groups):
        projects = [each.value for each in selection.conditions if each.dimension is EntryField.PROJECT]
        self.begun.put(projects[0] if projects else "operator")
        assert self.ends.acquire(timeout=60)
        return self._read(selection, dimensions, max_groups)

    async def next(self):
        return await asyncio.to_thread(self.begun.get, timeout=60)


async def until_waiting(server, count):
    await await_until(lambda: server.reading._turns.waiting_count >= count)


async def test_projects_take_turns_and_the_operator_does_not_wait(server, monkeypatch):
    other = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Other"})).json()["id"]
    _, member = await server.person(ProjectRole.MEMBER)
    _, stranger = await server.person(ProjectRole.OWNER, other)
    held = HeldReads(server.reading._usage)
    monkeypatch.setattr(server.reading._usage, "report", held.report)
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(server.asked(member, f"{USAGE}?by=model")) for _ in range(6)]
        assert [await held.next(), await held.next()] == ["default"] * 2
        await until_waiting(server, 4)
        reads.append(group.create_task(server.asked(stranger, USAGE)))
        await until_waiting(server, 5)
        reads.append(group.create_task(server.asked(server.admin, USAGE)))
        assert await held.next() == "operator"
        held.ends.release()  # whichever ends, a place of the projects is free after two
        held.ends.release()
        begun = [await held.next()]
        held.ends.release()
        begun.append(await held.next())
        assert other in begun
        for _ in reads:
            held.ends.release()
    assert [read.result().status for read in reads] == [200] * len(reads)


async def test_who_leaves_keeps_the_turn_until_the_thread_is_free(server, monkeypatch):
    """Otherwise reads that nobody waits for would fill the threads' own queue, which has no turns."""
    _, member = await server.person(ProjectRole.MEMBER)
    held = HeldReads(server.reading._usage)
    monkeypatch.setattr(server.reading._usage, "report", held.report)
    actor_ = await actor(server, member)
    service = server.reading
    read = service.open_report(actor_, EntrySelection(0, 1), (), 1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(service.run_in_thread(actor_, read)) for _ in range(2)]
        assert [await held.next(), await held.next()] == ["default"] * 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        third = group.create_task(service.run_in_thread(actor_, lambda: "third"))
        await until_waiting(server, 1)
        held.ends.release()
        assert await third == "third"
        held.ends.release()


async def test_the_document_says_what_is_answered(server):
    answer = await server.asked(server.admin, "/openapi.json")
    assert answer.status == 200, answer.body
    document = answer.json()
    keep(server, replace(PLAIN, tags={"a": "b"}, total_ms=3))
    body = {"models": "*", "currency": "USD", "input": "1", "output": "2"}
    await server.asked(server.admin, f"{ROOT}/prices", body)
    for path in ("/usage", "/usage/entries", "/prices", "/usage?by=model,day,tag:a"):
        described = document["paths"][ROOT + path.partition("?")[0]]["get"]
        content = described["responses"]["200"]["content"]
        answer = (await server.asked(server.admin, ROOT + path)).json()
        assert answer["data"] or path == "/usage"
        schema = content["application/json"]["schema"]
        jsonschema.validate(answer, {**schema, "components": document["components"]})
    content = document["paths"][ENTRIES]["get"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/csv", "application/jsonl"}
    named = {each.get("name") for each in document["paths"][USAGE]["get"]["parameters"]}
    assert {"since", "until", "by", "format", "limit", "model", "end_user"} <= named


async def test_slow_sums_are_ended_and_say_what_to_ask_instead(server, monkeypatch):
    usual = ledger.TIME_LIMIT_S
    monkeypatch.setattr(ledger, "TIME_LIMIT_S", 0.3)
    keep(server, PLAIN)
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT i FROM n"
    )
    with server.entries._database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE ledger RENAME TO kept")
        connection.exec_driver_sql(f"CREATE VIEW ledger AS SELECT kept.* FROM kept, ({many})")
    for path in (USAGE, f"{USAGE}?by=model,day", f"{USAGE}/entries"):
        reply = await server.asked(server.admin, path)
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded"), path
        assert "shorter time" in reply.error["message"]
    with server.entries._database.writing() as connection:
        connection.exec_driver_sql("DROP VIEW ledger")
        connection.exec_driver_sql("ALTER TABLE kept RENAME TO ledger")
    monkeypatch.setattr(ledger, "TIME_LIMIT_S", usual)
    assert (await server.asked(server.admin, USAGE)).json()["total"]["requests"] == 1
