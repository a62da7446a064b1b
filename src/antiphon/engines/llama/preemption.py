"""Whose place another caller is to have: callers that run or wait have equal shares of the places, and of the
cells where these run short. A caller alone has all of them.

Turns alone do not do it: a caller that came first with long answers would hold every place until one of them
ends. Pure reading; the scheduler carries it out.
"""

from collections import Counter
from collections.abc import Callable, Collection

from antiphon.engines.llama.policy import Policy
from antiphon.engines.llama.sequence import Sequence
from antiphon.engines.llama.waiting import Waiting

PATIENCE = 0.25
"""Seconds that somebody waits before another gives way: a place may become free by itself."""
LEAST_RUN = 1.0
"""Seconds that a sequence runs before it gives way."""
LEAST_TOKENS = 16
"""Tokens that it gets further meanwhile, whatever was computed again: so each one ends."""


def exchange(
    running: Collection[Sequence],
    waiting: Waiting,
    policy: Policy,
    now: float,
    is_held: Callable[[Sequence], bool],
) -> tuple[Sequence, Sequence] | None:
    """Who is to have a place, and who of those that run gives it: the newest of the caller that holds most.
    Places are counted while all are taken, else cells, for want of which somebody waits then. A caller gives
    what it holds above its share. `is_held`: whether one waits for another's prompt, and wants no place."""
    if not waiting.since(now - PATIENCE):
        return None
    callers = len({one.actor for one in running} | waiting.actors())
    if callers < 2:
        return None
    is_full = len(running) >= policy.sequences
    if not is_full and policy.streams:
        return None
    share = -(-(policy.sequences if is_full else policy.cells) // callers)
    held: Counter[str] = Counter()
    for one in running:
        held[one.actor] += 1 if is_full else len(one.tokens)
    givers = [
        one
        for one in running
        if held[one.actor] - (1 if is_full else len(one.tokens)) >= share and _may_go(one, policy, now)
    ]
    if not givers:
        return None
    for taker in waiting.firsts(is_held):
        if held[taker.actor] < share and now - taker.queued >= PATIENCE:
            return taker, max(givers, key=lambda one: (held[one.actor], one.arrival))
    return None


def _may_go(one: Sequence, policy: Policy, now: float) -> bool:
    """Whether it ran long enough and got on. In exact mode scored prompts are not computed again as they
    were: their chunks may have been shorter."""
    if policy.exact and one.request.prompt_logprobs is not None:
        return False
    return now - one.since >= LEAST_RUN and one.computed - one.reached >= LEAST_TOKENS
