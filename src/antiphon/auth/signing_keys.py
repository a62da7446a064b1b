"""Fetches and keeps the public keys of an OpenID Connect issuer.

The server fetches the keys from the issuer periodically. For a token with an unknown key it fetches them
again, but at most once in several seconds. While the issuer does not answer, known keys stay valid for a day.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import jwt

from antiphon.errors import IssuerUnavailable
from antiphon.settings.server import is_loopback
from antiphon.telemetry.logs import record

REFRESH_S = 300.0
"""Seconds after which keys are fetched again. A key that the issuer withdraws is still accepted for this
time."""
MIN_FETCH_INTERVAL_S = 10.0
"""The minimum seconds between two fetches."""
MAX_AGE_S = 86_400.0
"""Seconds for which known keys stay valid while the issuer does not respond."""
TIMEOUT_S = 5.0
"""Seconds in which the issuer must respond."""
MAX_RESPONSE_BYTES = 1 << 20
"""The most bytes of a response of the issuer."""
MAX_LOGGED_LENGTH = 200
"""The most characters of a value of the issuer in the log."""
HTTP_OK = 200
DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[bytes]]
"""Downloads an address. Raises IssuerUnavailable."""


class SigningKeys:
    """The keys of one issuer."""

    def __init__(self, issuer: str, url: str | None, fetch: Fetch, monotonic: Callable[[], float]) -> None:
        """`url`: the address of the keys; None means that the issuer tells it. `monotonic`: seconds."""
        self._issuer = issuer
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._last_fetch: float | None = None
        self._last_attempt: float | None = None
        self._fetch_lock = asyncio.Lock()
        self.generation = 0
        """The number of changes of the keys. After a change, cached tokens are verified again."""

    async def refresh(self) -> None:
        """Fetches the keys again if the last fetch is more than REFRESH_S ago. Raises IssuerUnavailable if
        the known keys are older than MAX_AGE_S and cannot be fetched."""
        if self._get_age() > MAX_AGE_S:
            await self._refetch(is_required=True)
        elif self._get_age() > REFRESH_S and not self._fetch_lock.locked():
            await self._refetch()

    async def find(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the key with this id; fetches the keys if the id is unknown. Without an id, returns the
        only key. Returns None if there is no such key."""
        signing_key = self._find_key(kid)
        if signing_key is None:
            await self._refetch()
            signing_key = self._find_key(kid)
        return signing_key

    async def load(self) -> list[str]:
        """Fetches the keys now, and returns the algorithm of each. Raises IssuerUnavailable."""
        self._set_keys(await self._fetch_keys())
        return [key.algorithm_name for key in self._keys.values()]

    def _get_age(self) -> float:
        """Returns the seconds since the last fetch; infinite before the first."""
        return float("inf") if self._last_fetch is None else self._monotonic() - self._last_fetch

    def _find_key(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the known key with the id, or the only key if the id is None."""
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refetch(self, is_required: bool = False) -> None:
        """Fetches the keys, unless the last attempt was a few seconds ago. Logs a failure. If `is_required`,
        raises IssuerUnavailable if no valid keys are known."""
        last_attempt = self._last_attempt
        async with self._fetch_lock:
            was_tried_meanwhile = self._last_attempt != last_attempt
            if not was_tried_meanwhile and (
                self._last_attempt is None or self._monotonic() - self._last_attempt >= MIN_FETCH_INTERVAL_S
            ):
                self._last_attempt = self._monotonic()
                try:
                    self._set_keys(await self._fetch_keys())
                except IssuerUnavailable as problem:
                    record("issuer_unavailable", issuer=self._issuer, problem=problem.message)
        if is_required and self._get_age() > MAX_AGE_S:
            raise IssuerUnavailable(
                "the issuer of these tokens does not answer; try again", retry_after=MIN_FETCH_INTERVAL_S
            )

    async def _fetch_keys(self) -> Mapping[str, object]:
        """Fetches the issuer's key set."""
        url = self._url
        if url is None:
            discovery = _parse_object(await self._fetch(self._issuer.rstrip("/") + DISCOVERY))
            if discovery.get("issuer") != self._issuer:
                raise IssuerUnavailable(
                    f"the configuration at {self._issuer} belongs to the issuer "
                    f"{discovery.get('issuer')!r:.{MAX_LOGGED_LENGTH}}"
                )
            url = str(discovery.get("jwks_uri"))
        if not is_secure_url(url):
            raise IssuerUnavailable(f"the keys of {self._issuer} are not at an https address")
        return _parse_object(await self._fetch(url))

    def _set_keys(self, key_set: Mapping[str, object]) -> None:
        """Replaces the known keys by the usable keys of a key set."""
        try:
            jwk_keys = jwt.PyJWKSet.from_dict(dict(key_set)).keys
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as problem:
            raise IssuerUnavailable(f"the issuer's keys cannot be read: {type(problem).__name__}") from None
        keys = {key.key_id: key for key in jwk_keys if _is_signing_key(key)}
        if {kid: key.key for kid, key in keys.items()} != {kid: key.key for kid, key in self._keys.items()}:
            self.generation += 1
        self._keys, self._last_fetch = keys, self._monotonic()


def _is_signing_key(key: jwt.PyJWK) -> bool:
    """Whether a key is for signatures and has a usable id."""
    return key.public_key_use in (None, "sig") and isinstance(key.key_id, str | None)


def is_secure_url(url: str) -> bool:
    """Whether an address uses https or is on this machine, so that nobody on the network can change its
    responses."""
    try:
        address = urlsplit(url)
        return address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname or ""))
    except ValueError:
        return False


def _parse_object(body: bytes) -> dict[str, object]:
    """Parses a JSON object. Raises IssuerUnavailable for anything else."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise IssuerUnavailable("the issuer's answer is not a JSON object")
    return parsed


async def fetch(url: str) -> bytes:
    """Downloads an address without following redirects. Raises IssuerUnavailable."""
    import httpx2  # the import takes a tenth of a second, and only single sign-on needs it here

    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as response,
        ):
            if response.status_code != HTTP_OK:
                raise IssuerUnavailable(f"the issuer answered {response.status_code}")
            return await _read_body(response.aiter_bytes())
    except (httpx2.HTTPError, OSError, TimeoutError) as problem:
        raise IssuerUnavailable(f"the issuer does not answer: {type(problem).__name__}") from None


async def _read_body(chunks: AsyncIterator[bytes]) -> bytes:
    """Joins the chunks of a response. Raises IssuerUnavailable if it has more than MAX_RESPONSE_BYTES."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise IssuerUnavailable("the issuer's answer is too long")
    return bytes(body)
