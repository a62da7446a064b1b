"""The limiter of several nodes. The counters are in Redis or Valkey, and each call is one round trip.

If an answer is lost, its script can be sent again, because no script counts an amount twice. Running requests
are counted by leases. A node renews its leases while their claims are open, so the leases of a dead node
expire. The other amounts that a dead node reserved stay counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import islice
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import AuthenticationError, RedisError

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure
from antiphon.domain.values import Struct
from antiphon.errors import BudgetExceeded, LimitsUnavailable, SettingsError
from antiphon.limits.budget_watch import BudgetWatch
from antiphon.limits.local import LocalLimiter
from antiphon.limits.lua_scripts import (
    CONCURRENT_KIND,
    Argument,
    ScriptResult,
    Scripts,
    build_scripts,
    encode_claim,
    encode_limits,
    encode_seed,
    get_counter_kind,
)
from antiphon.limits.seeding import Seeder, SeedReader
from antiphon.task_group import task_group
from antiphon.telemetry.logs import record

UNAUTHENTICATED = "already authenticated"
"""A text in the error of a Redis that needs a password, if the client sends none."""

CONNECTIONS = 32

TIMEOUT_S = 1.0
"""Seconds after which Redis counts as unavailable."""

POLL_S = 1.0
"""Seconds between two checks whether Redis is available."""

RETRY_PAUSE_S = 0.25
"""Seconds after a failed call in which Redis is not called again."""

LEASE_S = 30.0
"""Seconds for which a claim counts as a running request, unless its lease is renewed."""

RENEWAL_S = 10.0
"""Seconds between two renewals of a lease."""

BATCH = 500
"""The most claims in one call."""

MAX_UNCERTAIN = 10_000
"""The most ended claims that wait to be sent. Above this, a claim that Redis has perhaps counted is not
settled, and stays counted."""

FAILURES = (RedisError, OSError, TimeoutError)


def check_redis(url: str, timeout_s: float) -> str:
    """Returns the server's name, version and address, without credentials. `timeout_s`: seconds to wait for
    an answer.
    Raises SettingsError for an invalid address, and LimitsUnavailable for a server that cannot be used."""
    RedisLimiter(url, SystemClock())  # raises SettingsError for an invalid address
    split_url = urlsplit(url)
    address = f"{split_url.scheme}://{split_url.netloc.rpartition('@')[2]}{split_url.path}"
    try:
        redis_info = asyncio.run(_fetch_info(url, timeout_s))
    except TimeoutError:
        raise LimitsUnavailable(f"{address} does not answer within {timeout_s:g} seconds") from None
    except (RedisError, OSError) as error:
        if isinstance(error, AuthenticationError) or UNAUTHENTICATED in str(error):
            raise LimitsUnavailable(
                f"{address} refuses the user or password in limits.url, or needs a password"
            ) from None
        reason = str(error).rstrip(".") or type(error).__name__
        raise LimitsUnavailable(f"{address} cannot be used: {reason}") from None
    if redis_info.get("role") == "slave":
        raise LimitsUnavailable(
            f"{address} is a replica, which cannot count: write the address of its primary into limits.url"
        )
    name = "valkey" if "valkey_version" in redis_info else "redis"
    return f"{name.capitalize()} {redis_info.get(f'{name}_version', '')} answers at {address}"


async def _fetch_info(url: str, timeout_s: float) -> dict[str, object]:
    """Checks that the server accepts commands, and returns its answer to INFO."""
    async with (
        asyncio.timeout(timeout_s),
        aclosing(Redis.from_url(url, retry=Retry(NoBackoff(), 0))) as redis,
    ):
        await redis.ping()
        redis_info: dict[str, object] = await redis.info()
        return redis_info


class RedisClaim(Struct):
    """An open claim in Redis."""

    limits: tuple[Limit, ...]
    step: int = 0
    """The number of extensions of the claim, including failed ones."""
    is_uncertain: bool = False
    """Whether the result of an extension is unknown, so that Redis can receive it after the claim has
    ended."""


class RedisLimiter:
    """A `Limiter` for all processes and nodes that use the same Redis and prefix. `keep_connected` must run
    beside it."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        seeder: Seeder | None = None,
        fails_open: bool = False,
        prefix: str = "antiphon",
        custom_scripts: Scripts | None = None,
    ) -> None:
        """Does not connect yet. `fails_open`: whether this process counts by itself while Redis is
        unavailable. If not, it refuses every request during that time. `custom_scripts` replaces the usual
        scripts.
        Raises SettingsError for an invalid address."""
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),
                decode_responses=True,
            )
        except ValueError:
            raise SettingsError(
                "limits.url is no address of Redis; use redis://HOST:PORT/DB, rediss://... or unix:///PATH"
            ) from None
        self._redis = Redis.from_pool(pool)
        self._clock = clock
        self._seed_reader = SeedReader(seeder, clock, fails_open)
        self._fallback = LocalLimiter(clock, seeder, fails_open=True) if fails_open else None
        self._keys = [f"{{{prefix}}}:limits"]
        """All keys share one cluster slot, because every script uses many keys."""
        scripts = custom_scripts or build_scripts()
        register = self._redis.register_script
        self._take_script, self._read_script = register(scripts.take), register(scripts.read_status)
        self._settle_script, self._renew_script = register(scripts.settle), register(scripts.renew)
        self._seed_script, self._release_script = register(scripts.seed), register(scripts.release)
        self._claims: dict[str, RedisClaim] = {}
        self._settled: deque[tuple[str, Amounts]] = deque()
        """Ended claims that are not sent to Redis yet, with the amounts that they used."""
        self._released: deque[str] = deque()
        """Open claims whose place among concurrent requests has ended, which Redis does not know yet."""
        self._has_settled = asyncio.Event()
        self.watch: BudgetWatch | None = None
        """Receives the usage of budgets; None if budget warnings are off."""
        self._unreported: dict[str, Limit] = {}
        """Budgets of claims that ended since the last report to the watch."""
        self._send_lock = asyncio.Lock()
        """Held while claims are sent, so that no claim is sent twice."""
        self._failed_at: float | None = None
        """Monotonic seconds of the last failure; None if the last call was answered."""

    @property
    def available(self) -> bool:
        """Whether Redis answered the last call, and the ledger could be read for new counters."""
        return self._failed_at is None and self._seed_reader.can_read

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Reserves amounts in Redis, or in the fallback limiter while Redis is unreachable."""
        redis_claim = RedisClaim(tuple(limits))
        claimed = amounts.index_by_measure(concurrent=1)
        needed_amounts = [claimed[limit.measure] for limit in limits]
        try:
            statuses = await self._take_amounts(claim, redis_claim.step, limits, needed_amounts)
        except asyncio.CancelledError:
            self._settle_uncertain(claim)
            raise
        except LimitsUnavailable:
            self._settle_uncertain(claim)
            if self._fallback is None:
                raise
            return await self._fallback.reserve(claim, limits, amounts)
        self._claims[claim] = redis_claim
        return statuses

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        redis_claim = self._claims.get(claim)
        if redis_claim is None:
            return () if self._fallback is None else await self._fallback.extend(claim, limits, amounts)
        # Incremented before the call: Redis may run the step although its answer is lost.
        redis_claim.step += 1
        added = amounts.index_by_measure()
        needed_amounts = [added[limit.measure] for limit in limits]
        try:
            return await self._take_amounts(claim, redis_claim.step, limits, needed_amounts)
        except asyncio.CancelledError:
            redis_claim.is_uncertain = True
            raise
        except LimitsUnavailable:
            redis_claim.is_uncertain = True
            if self._fallback is None:
                raise
            return ()

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        if (redis_claim := self._claims.pop(claim, None)) is not None:
            self._settled.append((claim, amounts))
            self._has_settled.set()
            if self.watch is not None:
                self._unreported.update({limit.id: limit for limit in redis_claim.limits if limit.is_budget})
            if redis_claim.is_uncertain:
                self._settle_uncertain(claim)
        elif self._fallback is not None:
            self._fallback.settle(claim, amounts)

    def release_place(self, claim: str) -> None:
        redis_claim = self._claims.get(claim)
        if redis_claim is None:
            if self._fallback is not None:
                self._fallback.release_place(claim)
            return
        limits = tuple(limit for limit in redis_claim.limits if limit.measure is not Measure.CONCURRENT)
        if limits != redis_claim.limits:
            redis_claim.limits = limits  # so that its lease is not renewed
            self._released.append(claim)
            self._has_settled.set()

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        try:
            result = await self._call_seeded(
                limits, self._read_script, self._encode_limits(limits, [0] * len(limits))
            )
        except LimitsUnavailable:
            if self._fallback is None:
                raise
            return await self._fallback.read_status(limits)
        return result.build_statuses(limits)

    async def aclose(self) -> None:
        with suppress(LimitsUnavailable):
            await self._send_settled()
        await self._redis.aclose()

    async def keep_connected(self) -> None:
        """Sends settled claims, renews leases, and checks whether Redis is available and the ledger can be
        read, until cancelled."""

        async def retry_reads() -> None:
            while True:
                await self._seed_reader.retry()
                await asyncio.sleep(POLL_S)

        async with task_group() as group:
            # Beside the leases: a database can take longer to answer than a lease lasts.
            group.create_task(retry_reads())
            renewed_at = self._clock.monotonic()
            while True:
                with suppress(LimitsUnavailable):
                    await self._send_settled()
                    if self._clock.monotonic() - renewed_at >= RENEWAL_S:
                        renewed_at = self._clock.monotonic()
                        await self._renew_leases()
                # Waits until a claim is settled. Without one, or without Redis, asks whether it is available.
                try:
                    async with asyncio.timeout(POLL_S):
                        await (self._has_settled if self._failed_at is None else asyncio.Event()).wait()
                except TimeoutError:
                    with suppress(LimitsUnavailable):
                        await self._call(self._renew_script, [0])

    # --- helpers ---

    def _settle_uncertain(self, claim: str) -> None:
        """Settles a claim with no used amounts, because Redis may have counted it although the call
        failed."""
        if len(self._settled) < MAX_UNCERTAIN:
            self._settled.append((claim, Amounts()))
            self._has_settled.set()

    async def _send_settled(self) -> None:
        """Sends all settled claims to Redis. Raises LimitsUnavailable."""
        self._has_settled.clear()
        async with self._send_lock:
            while self._released:
                released = list(islice(self._released, BATCH))
                await self._call(self._release_script, released)
                for _ in released:
                    self._released.popleft()
            while self._settled:
                batch = list(islice(self._settled, BATCH))
                arguments = [argument for ended in batch for argument in encode_claim(*ended)]
                await self._call(self._settle_script, arguments)
                for _ in batch:
                    self._settled.popleft()
        await self._report_usage()

    async def _report_usage(self) -> None:
        """Reports to the watch how much is used of the budgets of ended requests. Raises
        LimitsUnavailable."""
        limits = tuple(self._unreported.values())
        if self.watch is None or not limits:
            return
        result = await self._call_seeded(
            limits, self._read_script, self._encode_limits(limits, [0] * len(limits))
        )
        self._unreported = {id_: limit for id_, limit in self._unreported.items() if limit not in limits}
        for status in result.build_statuses(limits):
            used = status.limit.amount - status.remaining
            self.watch.observe(status.limit, used, self._clock.wall())

    async def _renew_leases(self) -> None:
        """Renews the leases of all claims that count running requests."""
        claims = [
            claim
            for claim, redis_claim in self._claims.items()
            if any(get_counter_kind(limit) == CONCURRENT_KIND for limit in redis_claim.limits)
        ]
        for start in range(0, len(claims), BATCH):
            await self._call(self._renew_script, [int(LEASE_S * 1_000), *claims[start : start + BATCH]])

    async def _take_amounts(
        self, claim: str, step: int, limits: Sequence[Limit], needed: Sequence[int]
    ) -> tuple[LimitStatus, ...]:
        """Reserves the amounts in Redis, and returns the status of each limit. Reports a budget that refuses
        to the watch."""
        arguments = [claim, step, int(LEASE_S * 1_000), *self._encode_limits(limits, needed)]
        result = await self._call_seeded(limits, self._take_script, arguments)
        try:
            return result.build_statuses(limits, needed)
        except BudgetExceeded as refusal:
            used = {
                status.limit.id: status.limit.amount - status.remaining
                for status in refusal.statuses
                if isinstance(status, LimitStatus)
            }
            for limit in limits:
                if self.watch is not None and limit.id == refusal.limit:
                    self.watch.observe(limit, used.get(limit.id, 0), self._clock.wall(), is_exhausted=True)
            raise

    def _encode_limits(self, limits: Sequence[Limit], needed: Sequence[int]) -> list[Argument]:
        """Encodes the limits with the requested amounts, at the current time."""
        return encode_limits(limits, needed, self._clock.wall())

    async def _call_seeded(
        self, limits: Sequence[Limit], script: AsyncScript, arguments: Sequence[Argument]
    ) -> ScriptResult:
        """Runs a script and returns its answer. If counters are missing, creates them from the ledger and
        runs the script again. Raises LimitsUnavailable."""
        if self._failed_at is not None and self._clock.monotonic() - self._failed_at < RETRY_PAUSE_S:
            raise self._build_unavailable()
        result = ScriptResult.parse(await self._call(script, arguments))
        if result.status == "unknown":
            missing = [limits[index] for index in result.indexes]
            seeds = await self._seed_reader.read(missing)
            for limit in missing:
                seed_arguments = encode_seed(limit, seeds.get(limit.id, ()), self._clock.wall())
                await self._call(self._seed_script, seed_arguments)
            result = ScriptResult.parse(await self._call(script, arguments))
        if result.status == "unknown":
            raise self._build_unavailable()
        return result

    async def _call(self, script: AsyncScript, arguments: Sequence[Argument]) -> object:
        """Runs a script and returns its raw answer. Raises LimitsUnavailable."""
        try:
            reply: object = await script(keys=self._keys, args=arguments)
        except FAILURES as error:
            if self._failed_at is None:
                record("limits_unavailable", logging.ERROR, problem=type(error).__name__)
            self._failed_at = self._clock.monotonic()
            raise self._build_unavailable() from None
        if self._failed_at is not None:
            self._failed_at = None
            record("limits_available", logging.WARNING)
        return reply

    @staticmethod
    def _build_unavailable() -> LimitsUnavailable:
        """Builds the error for a Redis that does not answer."""
        return LimitsUnavailable(
            "the usage of limits is counted in Redis, which does not answer; try again",
            retry_after=1.0,
        )
