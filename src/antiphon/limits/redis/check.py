"""Checks once, for a command, whether a Redis can count limits. Changes nothing in it."""

import asyncio
from contextlib import aclosing
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError

from antiphon.domain.context import SystemClock
from antiphon.errors import LimitsUnavailable
from antiphon.limits.redis.limiter import RedisLimiter

UNAUTHENTICATED = "already authenticated"
"""Part of the answer of a Redis with a password to a client without one."""


def check_redis(url: str, within: float) -> str:
    """Server name, version and address, without credentials. `within`: timeout in seconds. Raises
    SettingsError for an invalid address, and LimitsUnavailable for a server that cannot count."""
    RedisLimiter(url, SystemClock())  # raises SettingsError for an invalid address
    shown = _strip_credentials(url)
    try:
        facts = asyncio.run(_fetch_info(url, within))
    except TimeoutError:
        raise LimitsUnavailable(f"{shown} does not answer within {within:g} seconds") from None
    except (RedisError, OSError) as problem:
        if isinstance(problem, AuthenticationError) or UNAUTHENTICATED in str(problem):
            raise LimitsUnavailable(f"{shown} wants a password, or another one") from None
        said = str(problem).rstrip(".") or type(problem).__name__
        raise LimitsUnavailable(f"{shown} cannot be used: {said}") from None
    if facts.get("role") == "slave":
        raise LimitsUnavailable(f"{shown} is a replica, in which nothing can be counted: name its primary")
    name = "valkey" if "valkey_version" in facts else "redis"
    return f"{name.capitalize()} {facts.get(f'{name}_version', '')} answers at {shown}"


async def _fetch_info(url: str, within: float) -> dict[str, object]:
    """The answer to INFO."""
    async with asyncio.timeout(within), aclosing(Redis.from_url(url, retry=Retry(NoBackoff(), 0))) as redis:
        await redis.ping()
        facts: dict[str, object] = await redis.info()
        return facts


def _strip_credentials(url: str) -> str:
    """The address without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
