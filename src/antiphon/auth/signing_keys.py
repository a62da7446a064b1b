"""The public keys of an OpenID Connect issuer, which check its tokens.

The server fetches the keys from the issuer, and again from time to time. A token with an unknown key makes
the server fetch the keys again, but at most once in several seconds. While the issuer does not answer, known
keys stay valid for a day.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import jwt

from antiphon.errors import IssuerUnavailable
from antiphon.settings.server import is_loopback
from antiphon.telemetry.logs import record

FRESH = 300.0
"""Seconds after which keys are fetched again. A withdrawn key is still accepted for this time."""
AGAIN = 10.0
"""The smallest number of seconds between two fetches."""
STALE = 86_400.0
"""Seconds for which known keys stay valid without the issuer."""
TIMEOUT = 5.0
"""Seconds within which the issuer must answer."""
MOST_BYTES = 1 << 20
"""The largest answer of the issuer, in bytes."""
GOOD = 200
DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[bytes]]


class SigningKeys:
    """The keys of one issuer."""

    def __init__(self, issuer: str, url: str | None, fetch: Fetch, monotonic: Callable[[], float]) -> None:
        """`url` is the address of the keys; with None the server asks the issuer for the address. `fetch`
        downloads an address or raises IssuerUnavailable."""
        self._issuer = issuer
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching = asyncio.Lock()
        self.generation = 0
        """The number of times that the keys changed. Tokens that were checked with earlier keys are checked
        again."""

    async def refresh(self) -> None:
        """Fetches the keys again if they are old. Raises IssuerUnavailable if no valid key is known."""
        if self._age() > STALE:
            await self._renew(required=True)
        elif self._age() > FRESH and not self._fetching.locked():
            await self._renew()

    async def find(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the key with the id. Fetches the keys if the id is unknown. For a token without an id,
        returns the only key. Returns None if there is no such key."""
        signing_key = self._find_key(kid)
        if signing_key is None:
            await self._renew()
            signing_key = self._find_key(kid)
        return signing_key

    def _age(self) -> float:
        """Returns the seconds since the keys were fetched; infinite if they never were."""
        return float("inf") if self._fetched is None else self._monotonic() - self._fetched

    def _find_key(self, kid: str | None) -> jwt.PyJWK | None:
        """Returns the known key with the id, or the only key if the id is None."""
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _renew(self, required: bool = False) -> None:
        """Fetches the keys, unless the last try was a few seconds ago. If the fetch fails and `required` is
        true, raises IssuerUnavailable."""
        before = self._tried
        async with self._fetching:
            others_did = self._tried != before
            if not others_did and (self._tried is None or self._monotonic() - self._tried >= AGAIN):
                self._tried = self._monotonic()
                try:
                    self._learn(await self._fetch_keys())
                except IssuerUnavailable as problem:
                    record("issuer_unavailable", issuer=self._issuer, problem=problem.message)
        if required and self._age() > STALE:
            raise IssuerUnavailable(
                "the issuer of these tokens does not answer; try again", retry_after=AGAIN
            )

    async def _fetch_keys(self) -> Mapping[str, object]:
        """Fetches and returns the issuer's set of keys."""
        url = self._url
        if url is None:
            discovery = _parse_object(await self._fetch(self._issuer.rstrip("/") + DISCOVERY))
            if discovery.get("issuer") != self._issuer:
                raise IssuerUnavailable(f"the configuration at {self._issuer} is of another issuer")
            url = str(discovery.get("jwks_uri"))
        if not is_secure_url(url):
            raise IssuerUnavailable(f"the keys of {self._issuer} are not at an https address")
        return _parse_object(await self._fetch(url))

    def _learn(self, key_set: Mapping[str, object]) -> None:
        """Replaces the known keys by those keys of the set that this server can use."""
        try:
            usable = jwt.PyJWKSet.from_dict(dict(key_set)).keys
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as problem:
            raise IssuerUnavailable(f"the issuer's keys cannot be read: {type(problem).__name__}") from None
        keys = {key.key_id: key for key in usable if _is_signing_key(key)}
        if {kid: key.key for kid, key in keys.items()} != {kid: key.key for kid, key in self._keys.items()}:
            self.generation += 1
        self._keys, self._fetched = keys, self._monotonic()


def _is_signing_key(key: jwt.PyJWK) -> bool:
    """Whether a key is for signatures and has a usable id."""
    return key.public_key_use in (None, "sig") and isinstance(key.key_id, str | None)


def is_secure_url(url: str) -> bool:
    """Whether the address is safe: nobody on the network can change what the server fetches from it."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        return False


def _parse_object(body: bytes) -> dict[str, object]:
    """Parses a JSON object. Raises IssuerUnavailable for anything else."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise IssuerUnavailable("the issuer answered with something that is no JSON object")
    return parsed


async def fetch(url: str) -> bytes:
    """Downloads an address without following redirects. Raises IssuerUnavailable."""
    import httpx2  # the import takes a tenth of a second, and only single sign-on needs it here

    try:
        async with (
            asyncio.timeout(TIMEOUT),
            httpx2.AsyncClient(timeout=TIMEOUT) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as answer,
        ):
            if answer.status_code != GOOD:
                raise IssuerUnavailable(f"the issuer answered {answer.status_code}")
            return await _read_body(answer.aiter_bytes())
    except (httpx2.HTTPError, OSError, TimeoutError) as problem:
        raise IssuerUnavailable(f"the issuer does not answer: {type(problem).__name__}") from None


async def _read_body(parts: AsyncIterator[bytes]) -> bytes:
    """Joins the parts of an answer. Raises IssuerUnavailable if the answer is too long."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > MOST_BYTES:
            raise IssuerUnavailable("the issuer's answer is too long")
    return bytes(body)
