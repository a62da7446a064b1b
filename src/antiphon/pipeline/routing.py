"""From the name of a model to the use of a route: finds the model, checks the actor's rights, and chooses a
route.

Routes of the lowest order come first. Within an order two routes are drawn at random by their weights. The
better one is chosen: the one with fewer requests in flight and a shorter time to the first event. A route
that rests or is full is not drawn. A choice changes no state.

`pipeline.open_route` opens the chosen route.
"""

from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import log

from antiphon.domain.context import Clock
from antiphon.domain.identity import Actor
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.base import EngineState, ParkedEngine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import PermissionDenied

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
        ready: list[ModelRoute] = []
        for route in group:
            state, limit = route.state, route.in_flight_limit
            if route in skipped or (state.rests_until and state.is_resting(now)):
                continue
            if (limit is None or state.in_flight < limit) and route.engine.state() is EngineState.READY:
                ready.append(route)
        if len(ready) > 1:
            preferred = None if affinity is None else _find_preferred(ready, affinity)
            return preferred or _choose_better(ready, clock.seed(), now)
        if ready:
            return ready[0]
    return None


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
    prompt = request.prompts[0]
    if isinstance(prompt, Conversation):
        text = ""
        for message in prompt.messages:
            text += f"{message.role}\n{message.text[:LONG_PREFIX]}\n"
            if len(text) >= LONG_PREFIX:
                break
    elif prompt.tokens is not None:
        tokens = prompt.tokens[:LONG_PREFIX_TOKENS]
        return None if len(tokens) < LONG_PREFIX_TOKENS else repr(tokens).encode()
    else:
        text = prompt.text or ""
    return None if len(text) < LONG_PREFIX else text[:LONG_PREFIX].encode("utf-8", "surrogatepass")
