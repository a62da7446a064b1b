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
from antiphon.limits.answers import RUNNING, Answer, Argument, kind_of, limits_said, taken_said, used_said
from antiphon.limits.local import LocalLimiter, asked_of
from antiphon.limits.scripts import Scripts, scripts
from antiphon.limits.seeding import Asking, Seeds
from antiphon.telemetry.logs import record

CONNECTIONS = 32
ANSWER_S = 1.0
"""Seconds in which Redis answers; else it is not there."""
PULSE_S = 1.0
"""Seconds between two looks whether it is there."""
PATIENCE_S = 0.25
"""Seconds after a failure in which nobody tries again."""
LEASE_S = 30.0
RENEWED_S = 10.0
BATCH = 500
"""Claims of one call."""
DOUBTFUL = 10_000
"""Claims that Redis may have heard of, and that are told to be over; more than these stay counted."""
FAILURES = (RedisError, OSError, TimeoutError)


@dataclass(slots=True)
class Held:
    """A claim that stands in Redis."""

    limits: tuple[Limit, ...]
    step: int = 0
    """How often it took more, or may have."""
    doubtful: bool = False
    """Whether nobody knows if it took more: Redis may still get to hear of it, even after its end."""


class RedisLimiter:
    """A `Limiter` for all processes and nodes that name the same Redis and prefix. `keep_connected` has to
    run beside it."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        seeds: Seeds | None = None,
        opens: bool = False,
        prefix: str = "antiphon",
        said: Scripts | None = None,
    ) -> None:
        """`opens`: whether this process counts alone while Redis is away; else nothing passes then. Connects
        to nothing yet. `said`: the scripts, where they are not the usual ones. Raises SettingsError for an
        address that is none."""
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=ANSWER_S,
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
                retry=Retry(NoBackoff(), 1),
                decode_responses=True,
            )
        except ValueError:
            raise SettingsError(
                "limits.url is no address of Redis; say redis://HOST:PORT/DB, rediss://... or unix:///PATH"
            ) from None
        self._redis = Redis.from_pool(pool)
        self._clock = clock
        self._asking = Asking(seeds, clock, opens)
        self._alone = LocalLimiter(clock, seeds, opens=True) if opens else None
        self._keys = [f"{{{prefix}}}:limits"]
        """One slot of a cluster, since every script touches many keys."""
        texts, registered = said or scripts(), self._redis.register_script
        self._take, self._standing = registered(texts.take), registered(texts.standing)
        self._settle, self._renew = registered(texts.settle), registered(texts.renew)
        self._seed = registered(texts.seed)
        self._held: dict[str, Held] = {}
        self._ended: deque[tuple[str, Amounts]] = deque()
        """Claims that Redis is to be told of, with what was used."""
        self._told = asyncio.Event()
        self._telling = asyncio.Lock()
        """Held while Redis is told: what it was told of is taken off by whoever told it."""
        self._failed: float | None = None
        """When Redis did not answer; None, where it did."""

    @property
    def available(self) -> bool:
        """Whether Redis answered when it was asked last."""
        return self._failed is None

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        held = Held(tuple(limits))
        asked = [asked_of(limit, amounts) for limit in limits]
        try:
            standings = await self._taken(claim, held.step, limits, asked)
        except asyncio.CancelledError:
            self._doubt(claim)
            raise
        except LimitsUnavailable:
            self._doubt(claim)
            if self._alone is None:
                raise
            return await self._alone.reserve(claim, limits, amounts)
        self._held[claim] = held
        return standings

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        held = self._held.get(claim)
        if held is None:
            return () if self._alone is None else await self._alone.extend(claim, limits, amounts)
        held.step += 1  # also where no answer comes: what Redis may have taken is not taken for the next
        try:
            return await self._taken(claim, held.step, limits, [amounts.of(each.measure) for each in limits])
        except asyncio.CancelledError:
            held.doubtful = True
            raise
        except LimitsUnavailable:
            held.doubtful = True
            if self._alone is None:
                raise
            return ()

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        if (held := self._held.pop(claim, None)) is not None:
            self._ended.append((claim, amounts))
            self._told.set()
            if held.doubtful:
                self._doubt(claim)
        elif self._alone is not None:
            self._alone.settle(claim, amounts)

    async def standing(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        try:
            answer = await self._known(limits, self._standing, self._limits_said(limits, [0] * len(limits)))
        except LimitsUnavailable:
            if self._alone is None:
                raise
            return await self._alone.standing(limits)
        return answer.standings(limits)

    async def aclose(self) -> None:
        with suppress(LimitsUnavailable):
            await self._tell()
        await self._redis.aclose()

    async def keep_connected(self) -> None:
        """Tells Redis what is settled, renews leases, and looks whether Redis is there, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            with suppress(LimitsUnavailable):
                await self._tell()
                if self._clock.monotonic() - renewed >= RENEWED_S:
                    renewed = self._clock.monotonic()
                    await self._renewed()
            await self._pause()

    # --- how it is done ---

    def _doubt(self, claim: str) -> None:
        """Ends a claim of which nobody knows whether Redis has heard, or will hear yet."""
        if len(self._ended) < DOUBTFUL:
            self._ended.append((claim, Amounts()))
            self._told.set()

    async def _pause(self) -> None:
        """Until there is something to tell, but not longer than a pulse, after which Redis is looked for;
        where it is away, a pulse."""
        try:
            async with asyncio.timeout(PULSE_S):
                await (self._told if self.available else asyncio.Event()).wait()
        except TimeoutError:
            with suppress(LimitsUnavailable):
                await self._asked(self._renew, [0])

    async def _tell(self) -> None:
        self._told.clear()
        async with self._telling:
            while self._ended:
                batch = list(islice(self._ended, BATCH))
                await self._asked(self._settle, [each for ended in batch for each in used_said(*ended)])
                for _ in batch:
                    self._ended.popleft()

    async def _renewed(self) -> None:
        claims = [
            claim
            for claim, held in self._held.items()
            if any(kind_of(limit) == RUNNING for limit in held.limits)
        ]
        for at in range(0, len(claims), BATCH):
            await self._asked(self._renew, [int(LEASE_S * 1_000), *claims[at : at + BATCH]])

    async def _taken(
        self, claim: str, step: int, limits: Sequence[Limit], asked: Sequence[int]
    ) -> tuple[LimitStatus, ...]:
        arguments = [claim, step, int(LEASE_S * 1_000), *self._limits_said(limits, asked)]
        answer = await self._known(limits, self._take, arguments)
        return answer.standings(limits, asked)

    def _limits_said(self, limits: Sequence[Limit], asked: Sequence[int]) -> list[Argument]:
        return limits_said(limits, asked, self._clock.wall())

    async def _known(
        self, limits: Sequence[Limit], script: AsyncScript, arguments: Sequence[Argument]
    ) -> Answer:
        """What a script answers once every limit has its counter."""
        if self._failed is not None and self._clock.monotonic() - self._failed < PATIENCE_S:
            raise self._unavailable()
        answer = Answer.of(await self._asked(script, arguments))
        if answer.word == "unknown":
            await self._seeded([limits[place] for place in answer.numbers])
            answer = Answer.of(await self._asked(script, arguments))
        if answer.word == "unknown":
            raise self._unavailable()
        return answer

    async def _seeded(self, limits: Sequence[Limit]) -> None:
        """Makes counters of what the ledger knows. Raises LimitsUnavailable."""
        taken = await self._asking.taken(limits)
        for limit in limits:
            said = taken_said(limit, taken.get(limit.id, ()), self._clock.wall())
            await self._asked(self._seed, said)

    async def _asked(self, script: AsyncScript, arguments: Sequence[Argument]) -> object:
        """What Redis answers. Raises LimitsUnavailable."""
        try:
            said: object = await script(keys=self._keys, args=arguments)
        except FAILURES as problem:
            if self._failed is None:
                record("limits_unavailable", logging.ERROR, problem=type(problem).__name__)
            self._failed = self._clock.monotonic()
            raise self._unavailable() from None
        if self._failed is not None:
            self._failed = None
            record("limits_available", logging.WARNING)
        return said

    @staticmethod
    def _unavailable() -> LimitsUnavailable:
        return LimitsUnavailable(
            "what is used of the limits is counted in Redis, which does not answer; try again",
            retry_after=1.0,
        )
