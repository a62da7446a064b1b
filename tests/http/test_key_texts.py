"""Keys as attackers write them, on every carrier of a server with keys in a database: a 401 as for any wrong
key, as quickly, with nothing of a database in the answer or the log; and keys that begin alike are two."""

import itertools
import sqlite3
import statistics
import time
from contextlib import closing

import pytest

from antiphon.auth.secrets import MARK_TEXT, Pepper, extract_prefix, generate_key
from antiphon.domain.tenancy import Key, KeyKind
from antiphon.store.base import ChangeAuthor, StoredKey
from tests.support.http_server import CHAT, HELLO, KEY
from tests.support.keyed_server import OPERATOR, ROOT, keyed

SENTENCE = "Incorrect API key provided, or none: send a valid key in the header Authorization: Bearer KEY"
INJECTIONS = (
    "' OR (SELECT pg_sleep(8)) IS NOT NULL --",
    "' OR '1'='1",
    "'; DROP TABLE keys; --",
    "' UNION SELECT digest, id FROM keys --",
    "1) OR 1=randomblob(900000000) --",
    "%' OR 1=1 --",
    "\\' OR 1=1 #",
    "{{7*7}}${7*7}%s%n",
    "../../admin.key",
    "ak_*",
    "ak_%",
)
HOSTILE = {
    **{f"injection {number}": text for number, text in enumerate(INJECTIONS)},
    **{f"a key's injection {number}": f"ak_{text}" for number, text in enumerate(INJECTIONS)},
    "nothing": "",
    "blanks": "   ",
    "one character": "a",
    "a mark": "ak_",
    "not ASCII": "ak_é\u00fc\u00ff" * 12,
    "bytes that are no text": "\u00ff\u00fe\u0080",
    "a key in capitals": "AK_0123456789AB_" + "A" * 43,
    "a token of nobody": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJvcGVyYXRvciJ9.",
    "a deep token": "eyJ" + "A" * 4000 + "." + "A" * 3000 + ".A",
    "as long as it may be": "ak_" + "a" * 8189,
    "longer": "ak_" + "a" * 20_000,
    "what the pepper's mark is made of": MARK_TEXT.decode(),
    "null": "null",
    "undefined": "undefined",
    "a list": "ak_a,ak_b",
}
"""Texts that a header can hold."""
SLOWER = 0.1
"""Seconds by which such a text may take longer than a wrong key."""
ROUNDS = 5
CARRIERS = (b"authorization: Bearer ", b"x-api-key: ", b"api-key: ")
REFUSED = frozenset({400, 401, 431})


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path, show_details=False) as running:
        yield running


def carried(text):
    """A text in every carrier."""
    yield {"authorization": f"Bearer {text}"}
    yield {"x-api-key": text}
    yield {"api-key": text}


async def took(server, headers, path=CHAT, body=HELLO):
    """Seconds of one request, and its answer."""
    began = time.perf_counter()
    answer = await server.ask(path, body, headers=headers)
    return time.perf_counter() - began, answer


async def test_a_hostile_text_is_a_wrong_key_like_any_other(server, caplog):
    wrong = statistics.median(
        [(await took(server, {"x-api-key": generate_key()}))[0] for _ in range(3 * ROUNDS)]
    )
    for name, text in HOSTILE.items():
        hostile = []
        for headers in [*carried(text)] * ROUNDS:
            seconds, answer = await took(server, headers)
            hostile.append(seconds)
            assert (answer.status, answer.error["message"]) == (401, SENTENCE), name
        for headers in carried(text):
            assert (await server.ask(f"{ROOT}/keys", headers=headers)).status == 401, name
        assert statistics.median(hostile) < wrong + SLOWER, name
        assert len(text.strip()) < 8 or text.strip() not in caplog.text, name
    assert server.engine.streams == []
    for word in ("sql", "traceback", "syntax", "operationalerror", "store_failed"):
        assert word not in caplog.text.lower()
    assert (await server.asked(server.admin, f"{ROOT}/keys")).status == 200


@pytest.mark.parametrize("size", [65_000, 1_000_000])
async def test_a_key_of_a_megabyte_is_refused_before_it_is_read(server, size):
    for carrier in CARRIERS:
        await refuse_large(server, carrier, size)


async def refuse_large(server, carrier, size):
    async with server.line() as line:
        began = time.process_time()  # this process has client and server
        head = (
            b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + carrier + b"ak_" + b"a" * size + b"\r\n\r\n"
        )
        try:
            await line.send(head)
        except ConnectionError:  # it hung up before it had read all
            return
        answer = await line.until(b"\r\n")
        assert int(answer.split(b" ")[1]) in REFUSED
        assert time.process_time() - began < 2


async def test_a_key_with_control_characters_is_refused(server, caplog):
    raws = (b"ak_\0\0", b"ak_a\0b", b"ak_a\x0bb", b"ak_\x7f", b"\0", b"ak_a\rb", b"ak_a\nb")
    for raw, carrier in itertools.product(raws, CARRIERS):
        request = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + carrier + raw + b"\r\n\r\n"
        assert (await server.raw(request)).status in REFUSED, raw
    assert "sql" not in caplog.text.lower()


async def test_what_says_for_whom_is_no_statement_either(server, caplog):
    """Behind a key that is right: headers, ids in paths, and what queries choose by."""
    for text in (*INJECTIONS[:4], "a\u0000b", "%00", "..%2f..%2fetc"):
        await refuse_statement(server, text)
    assert "internal_error" not in caplog.text and "store_failed" not in caplog.text


async def refuse_statement(server, text):
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    for name in ("x-project-id", "x-selected-account-id", "x-user-id"):
        if text.isprintable():
            answer = await server.asked(server.admin, CHAT, HELLO, headers={name: text})
            assert (answer.status, answer.error["param"]) == (
                400,
                name.replace("selected-account", "project"),
            )
    for path in ("keys", "users", "projects", "limits", "prices", "requests"):
        assert (await server.asked(server.admin, f"{ROOT}/{path}/{quoted}")).status == 404, path
        asked = f"{ROOT}/{path}?after={quoted}" + ("&project=default" if path == "requests" else "")
        assert (await server.asked(server.admin, asked)).status in (400, 404), path
    for query in (
        "audit?target=",
        "usage/entries?model=",
        "usage/entries?tag:a=",
        "limits?target=",
    ):
        answer = await server.asked(server.admin, f"{ROOT}/{query}{quoted}")
        assert answer.status == 200 and not answer.json()["data"], query
    answer = await server.asked(server.admin, f"{ROOT}/usage?project={quoted}")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert (await server.asked(server.admin, f"{ROOT}/usage?by={quoted}")).status == 400
    assert (await server.asked(server.admin, f"{ROOT}/audit?before={quoted}")).status == 400


async def test_keys_in_an_address_open_nothing(server):
    """Nor in a cookie, a body, or the userinfo of an address."""
    for name in ("api_key", "key", "access_token", "token", "authorization", "x-api-key", "api-key"):
        for path, body in (("/v1/models", None), (CHAT, HELLO), (f"{ROOT}/keys", None), ("/metrics", None)):
            assert (await server.ask(f"{path}?{name}={server.admin}", body)).status == 401, name
        assert (await server.ask("/v1/models", headers={"cookie": f"{name}={server.admin}"})).status == 401
        assert (await server.ask(CHAT, HELLO | {name: server.admin})).status == 401
    target = f"GET http://{server.admin}@localhost/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert (await server.raw(target.encode())).status == 401


async def test_two_different_keys_are_a_400_whichever_they_are(server):
    """Both valid, one of them wrong, or none: no carrier comes before another."""
    service = await server.token(KeyKind.SERVICE, project="default")
    for one, two in ((server.admin, service), (service, server.admin), (KEY, service), (service, "wrong"),
                     ("wrong", service), ("wrong", "other")):  # fmt: skip
        for headers in (
            {"authorization": f"Bearer {one}", "x-api-key": two},
            {"authorization": f"Bearer {one}", "api-key": two},
            {"x-api-key": one, "api-key": two},
            {"x-api-key": one, "authorization": f"Basic {two}"},
        ):
            for path, body in (
                ("/v1/models", None),
                (CHAT, HELLO),
                (f"{ROOT}/keys", None),
                ("/metrics", None),
            ):
                answer = await server.ask(path, body, headers=headers)
                assert (answer.status, answer.error["code"]) == (400, "invalid_request"), headers
    assert server.engine.streams == []


async def test_keys_that_begin_alike_are_two_keys(server):
    other = await server.tenants.add_project(OPERATOR, "Other", "")
    ended = "A" if (first := generate_key())[-1] != "A" else "B"
    second, unknown = first[:-1] + ended, first[:-1] + "C"
    pepper, now = Pepper(b"p" * 32), int(server.edge.clock.wall())
    for number, (secret, project) in enumerate(((first, "default"), (second, other.id))):
        key = Key(f"key_{number}", KeyKind.SERVICE, extract_prefix(secret), now, "test", project=project)
        server.tenants._tenancy.add_key(StoredKey(key, pepper.digest(secret)), ChangeAuthor("test", now))
    await server.changes.load()
    for _ in range(2):  # the second time from whatever remembers the first
        for secret, project in ((first, "default"), (second, other.id)):
            assert (await server.asked(secret, CHAT, HELLO)).status == 200
            assert server.engine.streams[-1].context.actor.project == project
        for wrong in (unknown, first[:-1], first[:20], second + "x", first.upper()):
            assert (await server.asked(wrong, CHAT, HELLO)).status == 401
    await server.tenants.revoke_key(OPERATOR, "key_0")
    assert [(await server.asked(each, CHAT, HELLO)).status for each in (first, second)] == [401, 200]


async def test_the_database_holds_digests_and_nothing_of_a_key(server, tmp_path):
    made = [await server.token(KeyKind.SERVICE, project="default") for _ in range(3)]
    with closing(sqlite3.connect(tmp_path / "antiphon.db")) as connection:
        dump = "\n".join(connection.iterdump())
        digests = {bytes(row[0]) for row in connection.execute("SELECT digest FROM keys")}
    for secret in (*made, server.admin):
        assert secret[16:] not in dump and secret[16:24] not in dump and secret[-8:] not in dump
        assert Pepper(b"p" * 32).digest(secret) in digests
    assert all(len(digest) == 32 for digest in digests)
    assert bytes.fromhex(Pepper(b"p" * 32).mark) not in digests
    assert ("70" * 16) not in dump and "p" * 32 not in dump
