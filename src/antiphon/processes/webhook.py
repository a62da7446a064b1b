"""Posts signed messages to the operator's webhook, as Standard Webhooks specifies: the signature covers the
id, the time and the body. It follows no redirect, and connects to a private address only if the operator
allows it."""

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from antiphon.domain.context import Clock
from antiphon.domain.values import Struct
from antiphon.engines.vendors.address_guard import (
    GuardedResolver,
    LookUp,
    is_literal,
    is_public,
    is_unusual_number,
)
from antiphon.errors import SettingsError
from antiphon.telemetry.logs import record

PAUSES_S: Sequence[float] = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each further attempt."""

TIMEOUT_S = 10.0
"""The time limit of one attempt in seconds."""

MAX_WAITING = 1_000
"""The most messages that wait for the webhook. Further messages are dropped."""

TEMPORARY_ERRORS = frozenset({408, 409, 425, 429})
"""Client errors that can be temporary. After other client errors there is no further attempt."""

BASE64_PREFIX = "whsec_"
"""The prefix of a secret in base64."""


class WebhookResolver(GuardedResolver, AbstractResolver):
    """The vendors' guard, as aiohttp wants it."""


class WebhookMessage(Struct, frozen=True):
    """A message. The receiver recognises a repetition by the id."""

    id: str
    body: bytes


class WebhookSender:
    """Delivers messages one after the other. `run` must run in a task."""

    def __init__(
        self,
        url: str,
        secret: str,
        clock: Clock,
        count_outcome: Callable[[str], None] = lambda _: None,
        allows_private: bool = False,
        look_up: LookUp | None = None,
    ) -> None:
        """`count_outcome` is called with the outcome of each message. `look_up` resolves host names; without
        it the system does. Raises SettingsError for an unusable address or secret."""
        self._url = _parse_address(url)
        self._secret = _decode_secret(secret)
        self._clock = clock
        self._count_outcome = count_outcome
        self._allows_private = allows_private
        self._look_up = look_up
        self._waiting: asyncio.Queue[WebhookMessage] = asyncio.Queue(MAX_WAITING)
        self.pauses = PAUSES_S
        _require_public(self._url.host or "", allows_private)

    def put(self, message: WebhookMessage) -> None:
        """Queues a message. Does not wait."""
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            record("webhook_dropped", logging.ERROR, id=message.id)
            self._count_outcome("dropped")

    async def run(self) -> None:
        """Delivers messages until cancelled."""
        threads = ThreadPoolExecutor(1, "antiphon-webhook-dns")
        resolver = WebhookResolver(threads, self._allows_private, TIMEOUT_S, None, self._look_up)
        connector = aiohttp.TCPConnector(limit=1, resolver=resolver, force_close=True)
        try:
            async with aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                trust_env=False,
            ) as session:
                while True:
                    await self._deliver(session, await self._waiting.get())
        finally:
            threads.shutdown(wait=False)

    async def _deliver(self, session: aiohttp.ClientSession, message: WebhookMessage) -> None:
        """Posts a message until the receiver accepts it, refuses it permanently, or all attempts have
        failed."""
        problem: str | None = None
        for attempts, pause in enumerate((0.0, *self.pauses), start=1):
            await asyncio.sleep(pause)
            problem, is_final = await self._post(session, message)
            if problem is None:
                record("webhook_delivered", logging.DEBUG, id=message.id, tries=attempts)
                self._count_outcome("delivered")
                return
            if is_final:
                break
        record("webhook_failed", logging.ERROR, id=message.id, tries=attempts, problem=problem)
        self._count_outcome("failed")

    async def _post(self, session: aiohttp.ClientSession, message: WebhookMessage) -> tuple[str | None, bool]:
        """Posts a message. Returns the problem, or None, and whether the problem is permanent."""
        headers = sign_message(message, self._secret, int(self._clock.wall()))
        with suppress(TimeoutError):
            try:
                async with session.post(
                    self._url, data=message.body, headers=headers, allow_redirects=False
                ) as response:
                    status = response.status
            except (aiohttp.ClientError, OSError) as failure:
                if isinstance(failure, TimeoutError):
                    raise
                return type(failure).__name__, False  # its text can contain the address
            if 200 <= status < 300:
                return None, False
            return f"status {status}", status < 500 and status not in TEMPORARY_ERRORS
        return "no response in time", False


def sign_message(message: WebhookMessage, secret: bytes, now: int) -> dict[str, str]:
    """Returns the headers of a message that is sent at `now` (Unix seconds)."""
    content = b"%b.%d.%b" % (message.id.encode(), now, message.body)
    signature = base64.b64encode(hmac.digest(secret, content, "sha256")).decode()
    return {
        "content-type": "application/json",
        "user-agent": "antiphon",
        "webhook-id": message.id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{signature}",
    }


def _parse_address(url: str) -> URL:
    """Parses the address. Raises SettingsError without the address, because its path can be a secret."""
    try:
        return URL(url)
    except ValueError:
        raise SettingsError(
            "limits.webhook is not an address: write https://, a host, a port up to 65535 if needed, "
            "and a path"
        ) from None


def _decode_secret(secret: str) -> bytes:
    """Returns the bytes of a secret. Raises SettingsError."""
    if not secret.startswith(BASE64_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(BASE64_PREFIX), validate=True)
    except binascii.Error:
        raise SettingsError(
            f"limits.webhook_secret begins with {BASE64_PREFIX}, but no base64 follows"
        ) from None


def _require_public(host: str, allows_private: bool) -> None:
    """Raises SettingsError for a private address that is not allowed."""
    if is_unusual_number(host):
        raise SettingsError(
            "the host of limits.webhook is a number in an unusual form; write it as 127.0.0.1"
        )
    if not allows_private and is_literal(host) and not is_public(host):
        raise SettingsError(
            "limits.webhook has a private address; limits.webhook_private = true "
            "(ANTIPHON_LIMITS_WEBHOOK_PRIVATE) allows it"
        )
