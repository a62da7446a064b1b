"""The limiters that must all do the same, by one clock that the tests own."""

from itertools import count

from antiphon.domain.limits import Amounts
from antiphon.limits.local import LocalLimiter
from antiphon.limits.lua_scripts import build_scripts
from antiphon.limits.redis import RedisLimiter
from antiphon.limits.seeding import Seeder
from antiphon_testing.scripted_engine import FakeClock

KINDS = ("local", "redis")
OWN_TIME = "{redis.call('GET', prefix .. ':seconds'), redis.call('GET', prefix .. ':micros')}"
_numbers = count()


class TimedRedis(RedisLimiter):
    """In Redis, but by the tests' clock."""

    ahead = 0.0
    """Seconds by which the clock of Redis is ahead."""

    def __init__(
        self, url: str, clock: FakeClock, seeds: Seeder | None = None, fails_open: bool = False
    ) -> None:
        super().__init__(url, clock, seeds, fails_open, f"t{next(_numbers)}", build_scripts(OWN_TIME))

    async def _call(self, script, arguments):
        micros = round((self._clock.wall() + self.ahead) * 1_000_000)
        (prefix,) = self._keys
        seconds, micros = divmod(micros, 1_000_000)
        await self._redis.mset({f"{prefix}:seconds": seconds, f"{prefix}:micros": micros})
        return await super()._call(script, arguments)


Kind = LocalLimiter | TimedRedis


async def ended(limiter: Kind, claim: str, amounts: Amounts) -> None:
    """Settles, and waits until that is known everywhere."""
    limiter.settle(claim, amounts)
    if isinstance(limiter, TimedRedis):
        await limiter._send_settled()
