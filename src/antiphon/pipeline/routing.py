"""From the name of a model to the use of a route: finds the model, checks the actor's rights, and chooses a
route.

Routes of the lowest order come first. Within an order two routes are drawn at random by their weights. The
better one is chosen: the one with fewer requests in flight and a shorter time to the first event. A route
that rests or is full is not drawn. A choice changes no state.

A `RouteUse` lasts from the choice to the end of the request's stream. It counts as in flight. It measures the
time to the first event. After a failure it rests the route, so that requests avoid the route for a while. It
writes the route's metrics and the request's list of tries.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import log

from antiphon.domain.context import Clock, Context
from antiphon.domain.identity import Actor
from antiphon.domain.ledger import CANCELLED, OK, RouteTry
from antiphon.domain.limits import Amounts, Limit, Measure, Subject
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.domain.values import Struct
from antiphon.engines.base import EngineState, ParkedEngine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    InternalError,
    LargerThanLimit,
    PermissionDenied,
    ProviderBroken,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)
from antiphon.limits.base import Limiter
from antiphon.pipeline.spans import close_attempt, open_attempt
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics


def resolve(models: ModelRegistry, name: str, actor: Actor) -> Model:
    """Returns the model of a name or alias. Raises ModelNotFound, and PermissionDenied if the actor's key
    does not allow the model."""
    model = models.get(name, actor.may_use, actor.project)
    authorize(actor, model, name)
    return model


def authorize(actor: Actor, model: Model, name: str) -> None:
    """Raises PermissionDenied if the actor's key does not allow the model. The error repeats only the
    caller's `name`."""
    if not actor.may_use(model.name):
        raise PermissionDenied(f"this key may not use the model {name}", param="model")


def authorize_name(actor: Actor, name: str, param: str) -> None:
    """Raises PermissionDenied if the actor's key does not allow this name, whether the model exists or
    not."""
    if not actor.may_use(name):
        raise PermissionDenied(f"this key may not use the model {name}", param=param)


MIN_ADVANTAGE = 1.25
"""The factor by which the second drawn route must be better than the first to replace it."""

LONG_PREFIX = 1024
"""The characters at the beginning of a prompt that determine its preferred route. A shorter prompt has
none."""

LONG_PREFIX_TOKENS = 256
"""The token ids at the beginning of a prompt that determine its preferred route. A shorter prompt has
none."""

MAX_EXCESS = 4
"""A preferred route is used while its load is at most this much above twice the load of the least busy route.
The load counts requests in flight."""

_MASK = (1 << 64) - 1
_HALF = 1 << 32

LOADS_ON_REQUEST = (EngineState.PARKED, EngineState.LOADING)
"""The states of an engine that is loaded on request, before it is ready."""


def load_parked_engines(model: Model, chosen: ModelRoute) -> None:
    """Asks for the load of each parked engine whose route has at most the order of the chosen route."""
    for route in model.routes:
        engine = route.engine
        if (
            route.order <= chosen.order
            and engine.state() is EngineState.PARKED
            and isinstance(engine, ParkedEngine)
        ):
            engine.request_load()


def choose_route(
    model: Model, skipped: Collection[ModelRoute], clock: Clock, affinity: bytes | None
) -> ModelRoute | None:
    """Returns the best route that is ready; None if no route is ready. `affinity`: requests with equal bytes
    prefer one route."""
    now = clock.monotonic()
    for group in model.orders:
        ready = [route for route in group if route not in skipped and is_ready(route, now)]
        if len(ready) > 1:
            preferred = None if affinity is None else _find_preferred(ready, affinity)
            return preferred or _choose_better(ready, clock.seed(), now)
        if ready:
            return ready[0]
    return None


def is_ready(route: ModelRoute, now: float) -> bool:
    """Whether the route can be chosen now."""
    state = route.state
    if state.rests_until and state.is_resting(now):
        return False
    return not is_full(route) and route.engine.state() is EngineState.READY


def is_full(route: ModelRoute) -> bool:
    """Whether this process alone has as many requests in flight as the route's limit allows."""
    limit = route.in_flight_limit
    return limit is not None and route.state.in_flight >= limit


def choose_resting(model: Model, skipped: Collection[ModelRoute], now: float) -> ModelRoute | None:
    """Returns the route to try when no route is ready: the one whose rest ends first. Skips routes that rest
    because of a vendor's Retry-After. So one error of a model's only route does not stop its service."""
    candidates = [
        route
        for route in model.routes
        if route not in skipped
        and not has_retry_after(route, now)
        and not is_full(route)
        and route.engine.state() is EngineState.READY
    ]
    return min(candidates, key=lambda route: route.state.rests_until, default=None)


def is_unavailable(route: ModelRoute, now: float) -> bool:
    """Whether the route rests, or its engine is neither ready nor loaded on request."""
    state = route.engine.state()
    return route.state.is_resting(now) or (state is not EngineState.READY and state not in LOADS_ON_REQUEST)


def choose_unready(model: Model, skipped: Collection[ModelRoute]) -> ModelRoute | None:
    """Returns the first route whose engine is not ready; None if there is none."""
    for group in model.orders:
        for route in group:
            if route not in skipped and route.engine.state() is not EngineState.READY:
                return route
    return None


def has_retry_after(route: ModelRoute, now: float) -> bool:
    """Whether the route rests because of a vendor's Retry-After."""
    return now < route.state.held_until


def _choose_better(ready: Sequence[ModelRoute], seed: int, now: float) -> ModelRoute:
    """Draws two routes by weight, and returns the better one."""
    first_number, second_number = _draw_numbers(seed)
    first = _draw_route(ready, first_number)
    second = _draw_route([route for route in ready if route is not first], second_number)
    mean_weight = sum([route.weight for route in ready]) / len(ready)
    loads = _estimate_load(first, mean_weight), _estimate_load(second, mean_weight)
    if first.state.has_latency and second.state.has_latency:
        loads = (
            loads[0] * first.state.estimate_latency(now),
            loads[1] * second.state.estimate_latency(now),
        )
    return second if loads[1] * MIN_ADVANTAGE < loads[0] else first


def _draw_numbers(seed: int) -> tuple[float, float]:
    """Returns two independent numbers from 0 to 1, even for consecutive seeds."""
    mixed = (seed + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    mixed ^= mixed >> 31
    return (mixed >> 32) / _HALF, (mixed & (_HALF - 1)) / _HALF


def _draw_route(routes: Sequence[ModelRoute], position: float) -> ModelRoute:
    """Returns the route at a position from 0 to 1 on a line where each route is as long as its weight."""
    remaining = position * sum([route.weight for route in routes])
    for route in routes:
        remaining -= route.weight
        if remaining < 0:
            return route
    return routes[-1]


def _estimate_load(route: ModelRoute, mean_weight: float) -> float:
    """Returns the requests in flight relative to the weight, plus 1 for this request. `mean_weight`: the mean
    weight of the routes that are compared."""
    return route.state.in_flight * mean_weight / route.weight + 1


def _find_preferred(ready: Sequence[ModelRoute], affinity: bytes) -> ModelRoute | None:
    """Returns the route that these bytes prefer; None if it is much busier than another. When a route is
    added or removed, requests that prefer another route still prefer it."""
    preferred = min(ready, key=lambda route: _score(route, affinity))
    mean_weight = sum([route.weight for route in ready]) / len(ready)
    least_load = min([_estimate_load(route, mean_weight) for route in ready])
    return preferred if _estimate_load(preferred, mean_weight) <= 2 * least_load + MAX_EXCESS else None


def _score(route: ModelRoute, affinity: bytes) -> float:
    """Returns a number from a hash of the bytes and the route. A route has the lowest score for a share of
    all affinities that is proportional to its weight."""
    digest = blake2b(b"%b\0%b" % (route.name.encode(), affinity), digest_size=8).digest()
    return -log((int.from_bytes(digest) + 0.5) / (_MASK + 1)) / route.weight


def find_affinity(request: GenerationRequest) -> bytes | None:
    """Returns the bytes that requests with the same preferred route share: the prompt_cache_key, or the
    beginning of a long prompt. Returns None for a short prompt."""
    if request.vendor_options.prompt_cache_key is not None:
        return b"key:" + request.vendor_options.prompt_cache_key.encode("utf-8", "surrogatepass")
    return _find_prefix(request.prompts[0])


def _find_prefix(prompt: Prompt) -> bytes | None:
    """Returns the beginning of a prompt; None if the prompt is short."""
    if isinstance(prompt, Conversation):
        return _cut_prefix(_join_messages(prompt))
    if prompt.tokens is not None:
        tokens = prompt.tokens[:LONG_PREFIX_TOKENS]
        return None if len(tokens) < LONG_PREFIX_TOKENS else repr(tokens).encode()
    return _cut_prefix(prompt.text or "")


def _join_messages(prompt: Conversation) -> str:
    """Returns the roles and texts of the first messages, until they have LONG_PREFIX characters."""
    parts, length = [], 0
    for message in prompt.messages:
        parts.append(f"{message.role}\n{message.text[:LONG_PREFIX]}\n")
        length += len(parts[-1])
        if length >= LONG_PREFIX:
            break
    return "".join(parts)


def _cut_prefix(text: str) -> bytes | None:
    """Returns the first characters of a long text; None for a short one."""
    return None if len(text) < LONG_PREFIX else text[:LONG_PREFIX].encode("utf-8", "surrogatepass")


RESTING_ERRORS = (
    ProviderFailed,
    ProviderUnavailable,
    ProviderTimeout,
    ProviderRateLimited,
    ProviderKeyRefused,
    ProviderBroken,
)
"""The errors that rest a route. Errors about the request say nothing about the route."""

EXHAUSTED_ERRORS = (RateLimited, BudgetExceeded, LargerThanLimit)
"""The errors of a limiter for an exhausted limit."""

NOTHING = Amounts()

MILLISECONDS = 1000


class RoutePolicy(Struct, frozen=True):
    """The options that all uses of routes share."""

    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    limiter: Limiter | None = None
    """Counts the requests in flight of all HTTP processes; None if there is only this process."""


class RouteUse:
    """One request's use of a route."""

    __slots__ = (
        "_claim",
        "_counts",
        "_is_open",
        "_is_probe",
        "_limiter",
        "_model",
        "_started_at",
        "context",
        "has_begun",
        "has_served",
        "route",
    )

    def __init__(self, route: ModelRoute, model: Model, context: Context, policy: RoutePolicy) -> None:
        """Counts the request as in flight."""
        state = route.state
        counts = policy.metrics.find_route(model.label, route.label)
        state.in_flight += 1
        counts.in_flight += 1
        self.route = route
        self.has_begun = self.has_served = False
        self.context = context
        """The request's context. Once the attempt has begun, it has the attempt's span."""
        self._model = model
        self._counts = counts
        self._limiter = policy.limiter
        self._claim: str | None = None
        self._is_open = True
        self._started_at = context.clock.monotonic()
        self._is_probe = state.rests_until > 0
        if self._is_probe:
            state.is_probed = True

    async def count_in_limit(self) -> bool:
        """Counts the request in the route's limit of requests in flight over all processes. Returns whether
        the limit allows the request. All models of a pattern share the limit. Raises LimitsUnavailable."""
        max_in_flight, limiter = self.route.in_flight_limit, self._limiter
        if max_in_flight is None:
            return True
        if limiter is None:
            return self._counts.in_flight <= max_in_flight
        name = f"{self._model.label}\0{self.route.label}"
        limit = Limit(f"route:{name}", Subject.MODEL, name, Measure.CONCURRENT, max_in_flight, 0)
        claim = self.context.clock.unique()
        try:
            await limiter.reserve(claim, (limit,), NOTHING)
        except EXHAUSTED_ERRORS:
            return False
        self._claim = claim
        return True

    def begin_attempt(self) -> None:
        """Counts an attempt. Call it just before the engine is called."""
        self.has_begun = True
        self.context.progress.attempts += 1
        self._started_at = self.context.clock.monotonic()
        if self.context.span is not None:
            self.context = open_attempt(self.route, self._model, self.context, self.context.span)

    def record_first_event(self) -> None:
        """Records that the first event has arrived, so the route works."""
        route, progress, now = self.route, self.context.progress, self.context.clock.monotonic()
        seconds = now - self._started_at
        self.has_served = True
        route.state.add_latency(seconds, now)
        if self._is_probe:
            route.state.wake()
        progress.route = route.header
        progress.tries += (RouteTry(route.name, None, round(seconds * MILLISECONDS)),)
        self._counts.first_events.add(seconds)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the use. Only the first call has an effect. `error`: None if the stream is complete."""
        if not self._is_open:
            return
        self._is_open = False
        state, counts = self.route.state, self._counts
        state.in_flight -= 1
        counts.in_flight -= 1
        if self._is_probe:
            state.is_probed = False
        if self._claim is not None and self._limiter is not None:
            self._limiter.settle(self._claim, NOTHING)
        if self.has_begun:
            outcome = OK if error is None else _name_outcome(error)
            counts.outcomes[outcome] += 1
            if self.context.span is not None:
                close_attempt(self.context.span, outcome, self.context.clock.monotonic() - self._started_at)
        if isinstance(error, RESTING_ERRORS):
            self._rest(error)
        elif error is None and self.has_served:
            state.failures = 0
            # A request that started before the rest says nothing about the route now.
            if state.failed_at is not None and self._started_at >= state.rested_at:
                seconds = round(self.context.clock.monotonic() - state.failed_at, 1)
                state.failed_at, state.is_key_refused = None, False
                names = {"model": self._model.label, "route": self.route.label}
                record("route_serves_again", logging.WARNING, **names, seconds=seconds)

    def _rest(self, error: AntiphonError) -> None:
        """Rests the route after a failure. Logs the first rest since a whole answer, and the first refusal of
        the server's key, because it lasts longer."""
        state, now = self.route.state, self.context.clock.monotonic()
        self._counts.rests += state.rest(error, self._started_at, now)
        is_key_refused = isinstance(error, ProviderKeyRefused) and not error.is_key_renewed
        is_first_refusal = is_key_refused and not state.is_key_refused
        if state.failed_at is None or is_first_refusal:
            record(
                "route_rests",
                logging.WARNING,
                model=self._model.label,
                route=self.route.label,
                code=error.code,
                cause=error.cause or error.message,
                seconds=round(state.rests_until - now, 1),
            )
        state.failed_at = now if state.failed_at is None else state.failed_at
        state.is_key_refused |= is_first_refusal

    def add_try(self, code: str | None) -> None:
        """Adds a failed try to the request's list. `code`: the code of its error; None stands for the code
        with which the request ends. Repeated tries of a restarting engine become one try."""
        progress, name = self.context.progress, self.route.name
        duration_ms = round((self.context.clock.monotonic() - self._started_at) * MILLISECONDS)
        earlier_tries = progress.tries
        if (
            earlier_tries
            and code is not None
            and (earlier_tries[-1].route, earlier_tries[-1].error) == (name, code)
        ):
            duration_ms, earlier_tries = duration_ms + earlier_tries[-1].ms, earlier_tries[:-1]
        progress.tries = (*earlier_tries, RouteTry(name, code, duration_ms))


def _name_outcome(error: BaseException) -> str:
    """Returns the outcome of a failed attempt: `cancelled` if the caller left, or the code of its error."""
    if isinstance(error, AntiphonError):
        return error.code
    is_cancelled = isinstance(error, GeneratorExit | asyncio.CancelledError)
    return CANCELLED if is_cancelled else InternalError.code
