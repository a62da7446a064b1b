"""The webhook of warnings: signed, tried again, and kept away from private addresses."""

import asyncio
import base64
import hashlib
import hmac
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.engines.vendors.address_guard import ResolvedAddress
from antiphon.errors import SettingsError
from antiphon.processes.webhook import MAX_WAITING, WebhookMessage, WebhookSender
from antiphon.settings.tenancy import LimitsSettings, require_complete_webhook
from antiphon_testing import FakeClock
from tests.support.waiting import await_until
from tests.support.webhook_receiver import WebhookReceiver, receiving

SECRET = "whsec_" + base64.b64encode(b"a secret of these tests alone").decode()


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as receiver:
        yield receiver


@asynccontextmanager
async def sending(url: str, outcomes: Counter[str], **how: Any) -> AsyncIterator[WebhookSender]:
    how = {"allows_private": True} | how
    sender = WebhookSender(url, SECRET, FakeClock(), lambda outcome: outcomes.update([outcome]), **how)
    sender.pauses = (0.0, 0.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        yield sender
        task.cancel()


def verify(headers: dict[str, str], body: bytes) -> bool:
    """What the page tells receivers to do."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}")


async def test_a_message_is_signed_with_its_id_and_time(receiver: WebhookReceiver) -> None:
    outcomes: Counter[str] = Counter()
    async with sending(receiver.url, outcomes) as sender:
        sender.put(WebhookMessage("one", b'{"a": 1}'))
        await await_until(lambda: outcomes["delivered"] == 1)
    ((headers, body),) = receiver.arrived
    assert (body, headers["webhook-id"], headers["webhook-timestamp"]) == (b'{"a": 1}', "one", "1800000000")
    assert verify(headers, body) and not verify(headers, body + b" ")
    assert "authorization" not in headers and "cookie" not in headers


async def test_failures_are_tried_again_with_the_same_id(receiver: WebhookReceiver) -> None:
    outcomes: Counter[str] = Counter()
    receiver.statuses = [500, 429, 204, 503, 503, 503]
    async with sending(receiver.url, outcomes) as sender:
        sender.put(WebhookMessage("one", b"1"))
        sender.put(WebhookMessage("two", b"2"))
        await await_until(lambda: outcomes.total() == 2)
    assert outcomes == {"delivered": 1, "failed": 1}
    assert [headers["webhook-id"] for headers, _ in receiver.arrived] == ["one"] * 3 + ["two"] * 3


@pytest.mark.parametrize("status", [400, 404, 410, 307])
async def test_refusals_and_redirects_are_final(receiver: WebhookReceiver, status: int) -> None:
    outcomes: Counter[str] = Counter()
    receiver.statuses, receiver.headers = [status], {"location": f"{receiver.url}/other"}
    async with sending(receiver.url, outcomes) as sender:
        sender.put(WebhookMessage("one", b"1"))
        await await_until(lambda: outcomes.total() == 1)
    assert (outcomes["failed"], len(receiver.arrived)) == (1, 1)


async def test_a_name_that_leads_to_a_private_address_gets_nothing(receiver: WebhookReceiver) -> None:
    outcomes: Counter[str] = Counter()

    def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
        return [
            ResolvedAddress(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    url = f"http://hook.test:{receiver.port}/hook"
    async with sending(url, outcomes, allows_private=False, look_up=look_up) as sender:
        sender.put(WebhookMessage("one", b"1"))
        await await_until(lambda: outcomes.total() == 1)
    assert outcomes["failed"] == 1 and receiver.arrived == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"],
)
def test_private_and_disguised_addresses_end_the_start(host: str) -> None:
    with pytest.raises(SettingsError, match=r"limits\.webhook"):
        WebhookSender(f"https://{host}/hook", SECRET, FakeClock())


@pytest.mark.parametrize("host", ["h.example:99999", "[::1", "h.example:port"])
def test_an_address_that_cannot_be_read_ends_the_start(host: str) -> None:
    with pytest.raises(SettingsError, match=r"limits\.webhook is not an address") as refused:
        WebhookSender(f"https://{host}/hidden", SECRET, FakeClock())
    assert "hidden" not in str(refused.value)


async def test_a_full_queue_drops_and_counts() -> None:
    outcomes: Counter[str] = Counter()
    sender = WebhookSender(
        "https://hook.example.org", SECRET, FakeClock(), lambda outcome: outcomes.update([outcome])
    )
    for _ in range(MAX_WAITING + 2):
        sender.put(WebhookMessage("one", b"1"))
    assert outcomes == {"dropped": 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"webhook": "https://h.example"}, "webhook_secret"),
        ({"webhook_secret": "s" * 24}, "no effect without limits.webhook"),
        ({"webhook": "http://h.example", "webhook_secret": "s" * 24}, "https"),
        ({"webhook": "https://h.example", "webhook_secret": "s" * 24, "warn_at": ()}, "warn_at is empty"),
    ],
)
def test_half_a_webhook_is_refused_at_the_start(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        require_complete_webhook(LimitsSettings(**values), has_keys=True)


def test_a_webhook_without_keys_is_refused_at_the_start() -> None:
    complete = LimitsSettings(webhook="https://h.example", webhook_secret="s" * 24)
    require_complete_webhook(complete, has_keys=True)
    with pytest.raises(SettingsError, match="ANTIPHON_KEYS=true"):
        require_complete_webhook(complete, has_keys=False)


def test_a_secret_that_is_no_base64_is_refused() -> None:
    with pytest.raises(SettingsError, match="base64"):
        WebhookSender("https://hook.example.org", "whsec_***", FakeClock())
