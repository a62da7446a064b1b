"""The client's address in the log: of the connection, or of X-Forwarded-For from trusted proxies."""

import logging

import pytest

from antiphon.http.client_address import FORWARDED_FOR, TrustedProxies
from antiphon.telemetry.logs import FIELDS
from tests.support.http_server import CHAT, HELLO, Served, serving

PROXIES = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "192.0.2.7, 10.1.2.3", "192.0.2.7"),
        ("127.0.0.1", "1.2.3.4, 192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "10.9.9.9, 10.1.2.3", "10.9.9.9"),
        ("192.0.2.9", "1.2.3.4", "192.0.2.9"),
        ("127.0.0.1", "192.0.2.7:51234", "192.0.2.7"),
        ("127.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("127.0.0.1", "[2001:DB8::7]:443, fd00::1", "2001:db8::7"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "::ffff:192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7, , 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "\xff\x00\n evil=1", "10.0.0.1"),
        ("10.0.0.1", "999.1.1.1", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", ", ".join(["192.0.2.7", *["10.0.0.2"] * 9_000]), "10.0.0.2"),
        (None, "192.0.2.7", None),  # a Unix socket
    ],
)
def test_the_client_is_the_first_from_the_right_that_is_no_proxy(
    peer: str | None, forwarded: str, client: str | None
) -> None:
    headers = {FORWARDED_FOR: [forwarded.encode("latin-1")]}
    assert TrustedProxies(PROXIES).find_client(peer, headers) == client
    assert TrustedProxies(()).find_client(peer, headers) == peer


def test_several_headers_are_one_list() -> None:
    headers = {FORWARDED_FOR: [b"192.0.2.7", b"10.0.0.2"]}
    assert TrustedProxies(PROXIES).find_client("127.0.0.1", headers) == "192.0.2.7"


async def read_fields(
    served: Served, caplog: pytest.LogCaptureFixture, path: str, body: object, **headers: str
) -> dict[str, object]:
    """Returns the values of the record of one request."""
    caplog.clear()
    await served.ask(path, body, headers=headers)
    (fields,) = [getattr(record, FIELDS) for record in caplog.records]
    return dict(fields)


async def test_records_name_the_client_and_the_path(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    forwarded = {"x-forwarded-for": "1.2.3.4, 192.0.2.7"}
    places = (CHAT, HELLO), (CHAT, HELLO | {"n": 0}), ("/v1/models/canary", None), ("/nowhere", None)
    async with serving(trusted_proxies=PROXIES) as served:
        found = [await read_fields(served, caplog, *place, **forwarded) for place in places]
        direct = await read_fields(served, caplog, *places[1])
    assert {fields["client"] for fields in found} == {"192.0.2.7"} and direct["client"] == "127.0.0.1"
    assert [fields["path"] for fields in found] == [CHAT, CHAT, "/v1/models/{model:path}", "/nowhere"]
    assert "canary" not in str(found)


async def test_without_the_setting_the_header_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    async with serving(key="k" * 20) as served:
        fields = await read_fields(served, caplog, CHAT, HELLO, **{"x-forwarded-for": "192.0.2.7"})
    assert (fields["code"], fields["client"], fields["path"]) == ("invalid_api_key", "127.0.0.1", CHAT)


async def test_a_request_that_is_no_http_is_logged_with_its_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    async with serving() as served:
        assert (await served.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n")).status == 400
    (fields,) = [getattr(record, FIELDS) for record in caplog.records]
    assert fields["client"] == "127.0.0.1"
