"""A pipeline over routes with scripted engines, for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context
from antiphon.domain.ledger import Entry, RouteTry
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.engines.base import EngineState, PreparedRequest
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import AntiphonError
from antiphon.limits.base import Limiter
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedAnswer, ScriptedEngine
from tests.support.accounting import Books

HELLO = GenerationRequest("m", (RawPrompt("hello"),), output=Output(max_tokens=10))


class RouteEngine(ScriptedEngine):
    """A scripted engine whose next failures a test sets, before or after `prepare`."""

    def __init__(self, name: str, state: EngineState = EngineState.READY) -> None:
        super().__init__(self._answer, state=state)
        self.name = name
        self.asked = 0
        """Requests that reached the engine."""
        self.failures: list[AntiphonError] = []
        """The errors of the next requests; then requests succeed."""
        self.script = ScriptedAnswer()
        self.refusal: AntiphonError | None = None
        """Raised by `prepare`."""
        self.on_ask: Callable[[], None] = lambda: None

    def _answer(self, _request: GenerationRequest) -> ScriptedAnswer:
        self.asked += 1
        self.on_ask()
        return ScriptedAnswer(error=self.failures.pop(0)) if self.failures else self.script

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        if self.refusal is not None:
            raise self.refusal
        return await super().prepare(request, context)


@dataclass
class RouteBench:
    """One model `m` with routes to scripted engines, one clock, and the results of its requests."""

    routes: Sequence[ModelRoute]
    prefers_prefix: bool = False
    patience: float = 1000.0
    books: Books | None = None
    limiter: Limiter | None = None
    label: str = ""
    deadline: float | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    metrics: Metrics = field(default_factory=Metrics)
    tries: tuple[RouteTry, ...] = ()
    """The tries of the last request."""
    served: str = ""
    """The route of the last answer."""

    def __post_init__(self) -> None:
        if self.books is not None:
            self.clock = self.books.clock
        model = Model("m", tuple(self.routes), 1, label=self.label, prefers_prefix=self.prefers_prefix)
        accounting = None if self.books is None else self.books.accounting
        self.model = model
        self.pipeline = Pipeline(
            ModelRegistry((model,)), self.metrics, self.patience, accounting, self.limiter
        )

    async def run(self, request: GenerationRequest = HELLO) -> CollectedGeneration:
        deadline = None if self.deadline is None else self.clock.monotonic() + self.deadline
        context = Context("req-1", clock=self.clock, deadline=deadline)
        try:
            async with self.pipeline.run(request, context) as events:
                return await collect(events)
        finally:
            self.tries = context.progress.tries
            self.served = context.progress.route.decode()

    async def count(self, requests: int, request: GenerationRequest = HELLO) -> dict[str, int]:
        """Sends requests one after the other, and returns how many each route served."""
        counts: dict[str, int] = {}
        for _ in range(requests):
            await self.run(request)
            counts[self.served] = counts.get(self.served, 0) + 1
        return counts

    def list_tries(self) -> list[tuple[str, str | None]]:
        """The route and the error of each try of the last request."""
        return [(route_try.route, route_try.error) for route_try in self.tries]

    def list_outcomes(self) -> dict[tuple[str, ...], int]:
        """The attempts that ended, by model, route and outcome, as the metrics have them."""
        return {
            (*labels, outcome): count
            for labels, route_counts in self.metrics.routes.items()
            for outcome, count in route_counts.outcomes.items()
        }

    @property
    def entry(self) -> Entry:
        """The ledger's only entry."""
        assert self.books is not None
        return self.books.ledger.entry


def build_route(
    name: str, weight: float = 1.0, order: int = 1, in_flight_limit: int | None = None
) -> ModelRoute:
    """Builds a route with a scripted engine of the same name."""
    return ModelRoute(
        RouteEngine(name), "vendor", name=name, weight=weight, order=order, in_flight_limit=in_flight_limit
    )


def build_bench(*routes: ModelRoute | str, **options: object) -> RouteBench:
    """Builds a bench of routes; a name is a route of the first order."""
    built_routes = [build_route(route) if isinstance(route, str) else route for route in routes]
    return RouteBench(built_routes, **options)  # type: ignore[arg-type]


def get_engine(bench: RouteBench, name: str) -> RouteEngine:
    """Returns the engine of a route by its name."""
    (route,) = [route for route in bench.routes if route.name == name]
    return get_route_engine(route)


def get_route_engine(route: ModelRoute) -> RouteEngine:
    """Returns the engine of a route."""
    assert isinstance(route.engine, RouteEngine)
    return route.engine
