"""The limiter of several nodes: the counters lie in Redis or Valkey, and each call is one round trip.

The scripts may be sent again where no answer came, so a connection that breaks takes nothing twice. Requests
at once are counted by leases, renewed while their claims stand, so those of a node that died end by
themselves; what such a node had reserved beyond that stays counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.errors import LimitsUnavailable, SettingsError
from antiphon.limits.local import LocalLimiter, claim_amount
from antiphon.limits.redis.messages import (
    CONCURRENT_KIND,
    Argument,
    ScriptAnswer,
    counter_kind,
    encode_claim,
    encode_limits,
    encode_seed,
)
from antiphon.limits.redis.scripts import Scripts, build_scripts
from antiphon.limits.seeding import Seeder, SeedReader
from antiphon.telemetry.logs import record

CONNECTIONS = 32
TIMEOUT_S = 1.0
"""Seconds in which Redis answers; else it is not there."""
POLL_S = 1.0
"""Seconds between two looks whether it is there."""
RETRY_PAUSE_S = 0.25
"""Seconds after a failure in which nobody tries again."""
LEASE_S = 30.0
RENEWAL_S = 10.0
BATCH = 500
"""Claims of one call."""
MAX_UNCERTAIN = 10_000
"""Claims that Redis may have heard of, and that are told to be over; more than these stay counted."""
FAILURES = (RedisError, OSError, TimeoutError)


@dataclass(slots=True)
class RedisClaim:
    """A claim that stands in Redis."""

    limits: tuple[Limit, ...]
    step: int = 0
    """How often it took more, or may have."""
    is_uncertain: bool = False
    """Whether nobody knows if it took more: Redis may still get to hear of it, even after its end."""


class RedisLimiter:
    """A `Limiter` for all processes and nodes that name the same Redis and prefix. `keep_connected` has to
    run beside it."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        seeds: Seeder | None = None,
        opens: bool = False,
        prefix: str = "antiphon",
        custom_scripts: Scripts | None = None,
    ) -> None:
        """`opens`: whether this process counts alone while Redis is away; else nothing passes then. Connects
        to nothing yet. `said`: the scripts, where they are not the usual ones. Raises SettingsError for an
        address that is none."""
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
                "limits.url is no address of Redis; say redis://HOST:PORT/DB, rediss://... or unix:///PATH"
            ) from None
        self._redis = Redis.from_pool(pool)
        self._clock = clock
        self._seed_reader = SeedReader(seeds, clock, opens)
        self._fallback = LocalLimiter(clock, seeds, opens=True) if opens else None
        self._keys = [f"{{{prefix}}}:limits"]
        """One slot of a cluster, since every script touches many keys."""
        texts, registered = custom_scripts or build_scripts(), self._redis.register_script
        self._take_script, self._read_script = registered(texts.take), registered(texts.read_status)
        self._settle_script, self._renew_script = registered(texts.settle), registered(texts.renew)
        self._seed_script = registered(texts.seed)
        self._claims: dict[str, RedisClaim] = {}
        self._settled: deque[tuple[str, Amounts]] = deque()
        """Claims that Redis is to be told of, with what was used."""
        self._has_settled = asyncio.Event()
        self._sending = asyncio.Lock()
        """Held while Redis is told: what it was told of is taken off by whoever told it."""
        self._failed_at: float | None = None
        """When Redis did not answer; None, where it did."""

    @property
    def available(self) -> bool:
        """Whether Redis answered when it was asked last."""
        return self._failed_at is None

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        held = RedisClaim(tuple(limits))
        asked = [claim_amount(limit, amounts) for limit in limits]
        try:
            standings = await self._take_amounts(claim, held.step, limits, asked)
        except asyncio.CancelledError:
            self._settle_uncertain(claim)
            raise
        except LimitsUnavailable:
            self._settle_uncertain(claim)
            if self._fallback is None:
                raise
            return await self._fallback.reserve(claim, limits, amounts)
        self._claims[claim] = held
        return standings

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        held = self._claims.get(claim)
        if held is None:
            return () if self._fallback is None else await self._fallback.extend(claim, limits, amounts)
        held.step += 1  # also where no answer comes: what Redis may have taken is not taken for the next
        try:
            return await self._take_amounts(
                claim, held.step, limits, [amounts.amount_of(each.measure) for each in limits]
            )
        except asyncio.CancelledError:
            held.is_uncertain = True
            raise
        except LimitsUnavailable:
            held.is_uncertain = True
            if self._fallback is None:
                raise
            return ()

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        if (held := self._claims.pop(claim, None)) is not None:
            self._settled.append((claim, amounts))
            self._has_settled.set()
            if held.is_uncertain:
                self._settle_uncertain(claim)
        elif self._fallback is not None:
            self._fallback.settle(claim, amounts)

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        try:
            answer = await self._call_seeded(
                limits, self._read_script, self._encode_limits(limits, [0] * len(limits))
            )
        except LimitsUnavailable:
            if self._fallback is None:
                raise
            return await self._fallback.read_status(limits)
        return answer.build_statuses(limits)

    async def aclose(self) -> None:
        with suppress(LimitsUnavailable):
            await self._send_settled()
        await self._redis.aclose()

    async def keep_connected(self) -> None:
        """Tells Redis what is settled, renews leases, and looks whether Redis is there, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            with suppress(LimitsUnavailable):
                await self._send_settled()
                if self._clock.monotonic() - renewed >= RENEWAL_S:
                    renewed = self._clock.monotonic()
                    await self._renew_leases()
            await self._wait_for_work()

    # --- how it is done ---

    def _settle_uncertain(self, claim: str) -> None:
        """Ends a claim of which nobody knows whether Redis has heard, or will hear yet."""
        if len(self._settled) < MAX_UNCERTAIN:
            self._settled.append((claim, Amounts()))
            self._has_settled.set()

    async def _wait_for_work(self) -> None:
        """Until there is something to tell, but not longer than a pulse, after which Redis is looked for;
        where it is away, a pulse."""
        try:
            async with asyncio.timeout(POLL_S):
                await (self._has_settled if self.available else asyncio.Event()).wait()
        except TimeoutError:
            with suppress(LimitsUnavailable):
                await self._call(self._renew_script, [0])

    async def _send_settled(self) -> None:
        self._has_settled.clear()
        async with self._sending:
            while self._settled:
                batch = list(islice(self._settled, BATCH))
                await self._call(
                    self._settle_script, [each for ended in batch for each in encode_claim(*ended)]
                )
                for _ in batch:
                    self._settled.popleft()

    async def _renew_leases(self) -> None:
        claims = [
            claim
            for claim, held in self._claims.items()
            if any(counter_kind(limit) == CONCURRENT_KIND for limit in held.limits)
        ]
        for at in range(0, len(claims), BATCH):
            await self._call(self._renew_script, [int(LEASE_S * 1_000), *claims[at : at + BATCH]])

    async def _take_amounts(
        self, claim: str, step: int, limits: Sequence[Limit], asked: Sequence[int]
    ) -> tuple[LimitStatus, ...]:
        arguments = [claim, step, int(LEASE_S * 1_000), *self._encode_limits(limits, asked)]
        answer = await self._call_seeded(limits, self._take_script, arguments)
        return answer.build_statuses(limits, asked)

    def _encode_limits(self, limits: Sequence[Limit], asked: Sequence[int]) -> list[Argument]:
        return encode_limits(limits, asked, self._clock.wall())

    async def _call_seeded(
        self, limits: Sequence[Limit], script: AsyncScript, arguments: Sequence[Argument]
    ) -> ScriptAnswer:
        """What a script answers once every limit has its counter."""
        if self._failed_at is not None and self._clock.monotonic() - self._failed_at < RETRY_PAUSE_S:
            raise self._build_unavailable()
        answer = ScriptAnswer.parse(await self._call(script, arguments))
        if answer.status == "unknown":
            await self._seed_counters([limits[place] for place in answer.numbers])
            answer = ScriptAnswer.parse(await self._call(script, arguments))
        if answer.status == "unknown":
            raise self._build_unavailable()
        return answer

    async def _seed_counters(self, limits: Sequence[Limit]) -> None:
        """Makes counters of what the ledger knows. Raises LimitsUnavailable."""
        taken = await self._seed_reader.read(limits)
        for limit in limits:
            said = encode_seed(limit, taken.get(limit.id, ()), self._clock.wall())
            await self._call(self._seed_script, said)

    async def _call(self, script: AsyncScript, arguments: Sequence[Argument]) -> object:
        """What Redis answers. Raises LimitsUnavailable."""
        try:
            said: object = await script(keys=self._keys, args=arguments)
        except FAILURES as problem:
            if self._failed_at is None:
                record("limits_unavailable", logging.ERROR, problem=type(problem).__name__)
            self._failed_at = self._clock.monotonic()
            raise self._build_unavailable() from None
        if self._failed_at is not None:
            self._failed_at = None
            record("limits_available", logging.WARNING)
        return said

    @staticmethod
    def _build_unavailable() -> LimitsUnavailable:
        return LimitsUnavailable(
            "what is used of the limits is counted in Redis, which does not answer; try again",
            retry_after=1.0,
        )
