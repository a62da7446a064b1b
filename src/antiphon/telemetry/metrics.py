"""The metrics of an HTTP process: counts and times of requests by route, and of generations by model. The
counters are in memory. `Totals` adds the counters of several processes.

Labels are names from the settings and the code, names of loaded adapters, and some names of fields that
callers sent. The labels of an adapter are removed after it is unloaded. Those of a model that a reload
removes stay, up to a bound. So the number of series is bounded. No label contains other text of a caller, an
identity or a message.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from antiphon.domain import values
from antiphon.domain.models import RouteCounts, Timer
from antiphon.domain.values import Struct, field
from antiphon.telemetry.exposition import Family, MetricKind, Series, Value

MODEL = ("model",)
ROUTE = ("model", "route")

WEBHOOK_OUTCOMES = ("delivered", "failed", "dropped")

MAX_PROJECTS = 1_000
"""The most projects with series of their own."""
OTHER_PROJECTS = "other"

MAX_FIELDS = 50
"""The most fields with series of their own, of all dialects together."""
OTHER_FIELDS = "other"
FIELD_NAME = re.compile(r"[A-Za-z]\w{0,39}(\[\])?(\.[A-Za-z]\w{0,39}(\[\])?){0,5}", re.ASCII)
"""The names of fields that are labels. Any other name of a caller is OTHER_FIELDS."""

REQUESTS = Family(
    "antiphon_http_requests_total",
    MetricKind.COUNTER,
    "Requests by route and status. `left` means that the caller disconnected before it got a status.",
    ("route", "status"),
)
REQUEST_SECONDS = Family(
    "antiphon_http_request_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's headers to the end of its answer, also of a stream.",
    ("route",),
)
BODY_BYTES = Family("antiphon_http_body_bytes", MetricKind.GAUGE, "Bytes of the bodies of running requests.")
RUNNING = Family(
    "antiphon_generations_running",
    MetricKind.GAUGE,
    "Generations that run or wait.",
    MODEL,
)
ENDED = Family(
    "antiphon_generations_total",
    MetricKind.COUNTER,
    "Generations that ended: `ok`, `cancelled` by the caller, or the code of the error.",
    ("model", "status"),
)
SECONDS = Family(
    "antiphon_generation_seconds",
    MetricKind.HISTOGRAM,
    "Time from the start of a generation to its end.",
    MODEL,
)
FIRST_TOKEN = Family(
    "antiphon_generation_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Time from the start of a generation to its first token, in the HTTP process.",
    MODEL,
)
TOKENS = Family(
    "antiphon_tokens_total",
    MetricKind.COUNTER,
    "Tokens in usage: `input` of prompts, `output` of answers.",
    ("model", "type"),
)
CACHED = Family(
    "antiphon_cached_tokens_total",
    MetricKind.COUNTER,
    "Input tokens that came from the cache.",
    MODEL,
)
EMBEDDINGS = Family(
    "antiphon_embeddings_total",
    MetricKind.COUNTER,
    "Requests for vectors that ended: `ok`, `cancelled` by the caller, or the code of the error.",
    ("model", "status"),
)
EMBEDDING_SECONDS = Family(
    "antiphon_embedding_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request for vectors to its answer.",
    MODEL,
)
RERANKS = Family(
    "antiphon_reranks_total",
    MetricKind.COUNTER,
    "Requests to rank documents that ended: `ok`, `cancelled` by the caller, or the code of the error.",
    ("model", "status"),
)
RERANK_SECONDS = Family(
    "antiphon_rerank_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request to rank documents to its answer.",
    MODEL,
)
ROUTE_ATTEMPTS = Family(
    "antiphon_route_attempts_total",
    MetricKind.COUNTER,
    "Attempts at routes that ended: `ok`, `cancelled` by the caller, or the code of the error.",
    ("model", "route", "outcome"),
)
ROUTE_RESTS = Family(
    "antiphon_route_rests_total", MetricKind.COUNTER, "Rests of routes after a failure.", ROUTE
)
ROUTE_FIRST_EVENT = Family(
    "antiphon_route_first_event_seconds",
    MetricKind.HISTOGRAM,
    "Time from an attempt at a route to its first event.",
    ROUTE,
)
ROUTE_IN_FLIGHT = Family(
    "antiphon_route_in_flight", MetricKind.GAUGE, "Requests that run on routes, also streams.", ROUTE
)
ROUTE_UNAVAILABLE = Family(
    "antiphon_route_unavailable",
    MetricKind.GAUGE,
    "HTTP processes in which a route of a routed model rests now, or its engine does not serve.",
    ROUTE,
)
BUDGET_WARNINGS = Family(
    "antiphon_budget_warnings_total",
    MetricKind.COUNTER,
    "Warnings that a share of a budget was reached.",
    ("subject", "measure", "window", "share"),
)
WEBHOOKS = Family(
    "antiphon_webhooks_total",
    MetricKind.COUNTER,
    "Messages to the webhook: `delivered`, `failed` after all tries, or `dropped` because the"
    " queue was full.",
    ("outcome",),
)
REFUSALS = Family(
    "antiphon_limit_refusals_total",
    MetricKind.COUNTER,
    "Requests that a limit refused or ended.",
    ("subject", "measure", "window"),
)
COST = Family(
    "antiphon_cost_total",
    MetricKind.COUNTER,
    "Cost of requests, in billionths of the currency's unit.",
    ("model", "currency"),
)
UNUSED_FIELDS = Family(
    "antiphon_unused_fields_total",
    MetricKind.COUNTER,
    "Requests of the dialects `responses` and `messages` that had this field, item or tool, which the server"
    " does not use. After 50 names in an HTTP process, further ones are `other`, as are odd names.",
    ("dialect", "field"),
)
PROJECT_REQUESTS = Family(
    "antiphon_project_requests_total",
    MetricKind.COUNTER,
    "Generations and requests for vectors or ranks that ended, by the id of the project. After 1,000"
    " projects, further ones are `other`.",
    ("project",),
)
PROJECT_TOKENS = Family(
    "antiphon_project_tokens_total",
    MetricKind.COUNTER,
    "Tokens in usage of a project: `input` of prompts, `output` of answers.",
    ("project", "type"),
)
PROJECT_COST = Family(
    "antiphon_project_cost_total",
    MetricKind.COUNTER,
    "Cost of a project's requests, in billionths of the currency's unit.",
    ("project", "currency"),
)
LIMITS = Family(
    "antiphon_limits",
    MetricKind.GAUGE,
    "HTTP processes by whether the counter of limits answers: `available` or `unavailable`. Missing"
    " without keys.",
    ("state",),
)
STORE = Family(
    "antiphon_store",
    MetricKind.GAUGE,
    "HTTP processes by whether they follow the database's changes of keys, limits and prices: `followed` or"
    " `lost`.",
    ("state",),
)
RESPONSES_REFUSED = Family(
    "antiphon_responses_not_stored_total",
    MetricKind.COUNTER,
    "Responses that were not stored: the write `failed`, or they were `too_large`.",
    ("reason",),
)
STORE_FAILURES = Family(
    "antiphon_store_failures_total",
    MetricKind.COUNTER,
    "Calls of the database that failed in HTTP processes.",
)
LEDGER = Family(
    "antiphon_ledger",
    MetricKind.GAUGE,
    "HTTP processes by the state of their ledger: `well`, `waiting` for the database, or `full`.",
    ("state",),
)
BUILD = Family("antiphon_build_info", MetricKind.GAUGE, "Always 1; the label is the release.", ("version",))
PROCESSES = Family(
    "antiphon_http_processes", MetricKind.GAUGE, "HTTP processes that run, also those that are ending."
)
START = Family("antiphon_start_time_seconds", MetricKind.GAUGE, "When the server started, in Unix seconds.")
DEATHS = Family(
    "antiphon_process_deaths_total",
    MetricKind.COUNTER,
    "Processes of the server that ended unasked: `http`, `engine` with its model, `coordinator`, `knowledge`"
    " or `cluster node`.",
    ("process", "model"),
)
DISK_BYTES = Family(
    "antiphon_disk_bytes",
    MetricKind.GAUGE,
    "Size of the file system that holds a directory: `home`, `spool` or `knowledge`.",
    ("directory",),
)
DISK_FREE = Family(
    "antiphon_disk_free_bytes",
    MetricKind.GAUGE,
    "Bytes of this file system that the server can still use.",
    ("directory",),
)
BACKUP_TIME = Family(
    "antiphon_backup_time_seconds",
    MetricKind.GAUGE,
    "When the latest complete backup of this server was made, in Unix seconds; 0 if there is none.",
)

FAMILIES = (
    BUILD,
    START,
    PROCESSES,
    DEATHS,
    DISK_BYTES,
    DISK_FREE,
    BACKUP_TIME,
    REQUESTS,
    REQUEST_SECONDS,
    BODY_BYTES,
    RUNNING,
    ENDED,
    SECONDS,
    FIRST_TOKEN,
    TOKENS,
    CACHED,
    EMBEDDINGS,
    EMBEDDING_SECONDS,
    RERANKS,
    RERANK_SECONDS,
    ROUTE_ATTEMPTS,
    ROUTE_RESTS,
    ROUTE_FIRST_EVENT,
    ROUTE_IN_FLIGHT,
    ROUTE_UNAVAILABLE,
    BUDGET_WARNINGS,
    WEBHOOKS,
    REFUSALS,
    COST,
    UNUSED_FIELDS,
    PROJECT_REQUESTS,
    PROJECT_TOKENS,
    PROJECT_COST,
    LIMITS,
    STORE,
    STORE_FAILURES,
    RESPONSES_REFUSED,
    LEDGER,
)
"""The metrics of HTTP processes, in the order of the page."""


class Generation(values.Value, frozen=True):
    """The counts and times of a generation that ended; times in seconds."""

    model: str
    status: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    seconds: float
    first_token: float | None = None


class Metrics(Struct):
    """The metrics of this process. The HTTP layer and the pipeline write them; the exporter reads them."""

    running: Counter[str] = field(default_factory=Counter)
    """Generations in progress, by model."""
    ended_generations: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Generations that ended, by model and status."""
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    completion_tokens: Counter[str] = field(default_factory=Counter)
    cached_tokens: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, Timer] = field(default_factory=lambda: defaultdict(Timer))
    first_tokens: defaultdict[str, Timer] = field(default_factory=lambda: defaultdict(Timer))
    embeddings: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Embedding requests that ended, by model and status."""
    embedding_seconds: defaultdict[str, Timer] = field(default_factory=lambda: defaultdict(Timer))
    reranks: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Requests to rank documents that ended, by model and status."""
    rerank_seconds: defaultdict[str, Timer] = field(default_factory=lambda: defaultdict(Timer))
    requests: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Responses, by route and status."""
    request_seconds: defaultdict[str, Timer] = field(default_factory=lambda: defaultdict(Timer))
    routes: dict[tuple[str, str], RouteCounts] = field(default_factory=dict)
    """The counts of routes, by model and route."""
    refusals: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Requests refused by limits, by subject, measure and window."""
    cost: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Costs in nano-units, by model and currency."""
    unused_fields: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Fields of requests that the server does not use, by dialect and name."""
    project_requests: Counter[str] = field(default_factory=Counter)
    project_tokens: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Tokens by project and type."""
    project_cost: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Costs in nano-units, by project and currency."""
    unloaded: set[str] = field(default_factory=set)
    """Unloaded models that still have running generations."""
    removed_models: Collection[str] = ()
    """The models that reloads have removed, and whose series stay."""

    def begin_generation(self, model: str) -> None:
        """Counts a generation that starts."""
        self.unloaded.discard(model)
        self.running[model] += 1

    def end_generation(self, generation: Generation) -> None:
        """Counts a generation that ended, and removes the series of an unloaded model."""
        model = generation.model
        self.running[model] -= 1
        self.ended_generations[model, generation.status] += 1
        self.prompt_tokens[model] += generation.prompt_tokens
        self.completion_tokens[model] += generation.completion_tokens
        self.cached_tokens[model] += generation.cached_tokens
        self.seconds[model].add(generation.seconds)
        if generation.first_token is not None:
            self.first_tokens[model].add(generation.first_token)
        if model in self.unloaded:
            self.forget(model)

    def forget(self, model: str) -> None:
        """Removes the series of an unloaded model: now, or when its last generation ends."""
        if self.running[model] > 0:
            self.unloaded.add(model)
            return
        self.unloaded.discard(model)
        for counts in (self.running, self.prompt_tokens, self.completion_tokens, self.cached_tokens):
            counts.pop(model, None)
        for times in (self.seconds, self.first_tokens, self.embedding_seconds, self.rerank_seconds):
            times.pop(model, None)
        for counter in (self.ended_generations, self.embeddings, self.reranks, self.cost):
            for labels in [labels for labels in counter if labels[0] == model]:
                del counter[labels]
        for route in [route for route in self.routes if route[0] == model]:
            del self.routes[route]

    def keep_removed(self, removed_models: Collection[str], dropped_models: Iterable[str]) -> None:
        """Keeps the series of `removed_models`, and removes those of `dropped_models`, which were removed
        before them."""
        self.removed_models = removed_models
        for model in dropped_models:
            self.forget(model)

    def forget_routes(self, model: str, current_routes: Collection[str]) -> None:
        """Removes the series of the model's routes whose labels are not in `current_routes`."""
        for labels in [
            labels for labels in self.routes if labels[0] == model and labels[1] not in current_routes
        ]:
            del self.routes[labels]

    def find_route(self, model: str, route: str) -> RouteCounts:
        """Returns the counts of a model's route. Creates them if they are missing."""
        labels = model, route
        return self.routes.get(labels) or self.routes.setdefault(labels, RouteCounts())

    def count_embedding(self, model: str, status: str, tokens: int, seconds: float) -> None:
        """Counts an embedding request that ended."""
        self.embeddings[model, status] += 1
        self.embedding_seconds[model].add(seconds)
        self.prompt_tokens[model] += tokens

    def count_rerank(self, model: str, status: str, tokens: int, seconds: float) -> None:
        """Counts a request to rank documents that ended."""
        self.reranks[model, status] += 1
        self.rerank_seconds[model].add(seconds)
        self.prompt_tokens[model] += tokens

    def count_refusal(self, subject: str, measure: str, window: str | None) -> None:
        """Counts a request that a limit refused. `window` is None for a limit of concurrent requests."""
        self.refusals[subject, measure, window or "at once"] += 1

    def add_cost(self, model: str, project: str, currency: str, cost: int) -> None:
        """Adds the cost of a request, in nano-units."""
        self.cost[model, currency] += cost
        self.project_cost[self._choose_project_label(project), currency] += cost

    def count_project(self, project: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Counts a request of a project that ended."""
        label = self._choose_project_label(project)
        self.project_requests[label] += 1
        self.project_tokens[label, "input"] += prompt_tokens
        self.project_tokens[label, "output"] += completion_tokens

    def _choose_project_label(self, project: str) -> str:
        """Returns the project's id, or OTHER_PROJECTS if too many projects have series."""
        known = self.project_requests
        return project if project in known or len(known) < MAX_PROJECTS else OTHER_PROJECTS

    def count_unused(self, dialect: str, names: Iterable[str]) -> None:
        """Counts the names of fields in a request that the server does not use."""
        counts = self.unused_fields
        for name in names:
            label = dialect, name
            if label not in counts and (len(counts) >= MAX_FIELDS or FIELD_NAME.fullmatch(name) is None):
                label = dialect, OTHER_FIELDS
            counts[label] += 1

    def count_response(self, route: str, status: str, seconds: float) -> None:
        """Counts a response: its route, its status and its duration."""
        self.requests[route, status] += 1
        self.request_seconds[route].add(seconds)

    def list_series(self) -> Iterator[Series]:
        """Yields all series of the page."""
        yield REQUESTS, {**self.requests}
        yield REQUEST_SECONDS, _build_histograms(self.request_seconds)
        yield RUNNING, {(model,): count for model, count in self.running.items()}
        yield ENDED, {**self.ended_generations}
        yield SECONDS, _build_histograms(self.seconds)
        yield FIRST_TOKEN, _build_histograms(self.first_tokens)
        yield TOKENS, _label_by_type(input=self.prompt_tokens, output=self.completion_tokens)
        yield CACHED, {(model,): count for model, count in self.cached_tokens.items()}
        yield EMBEDDINGS, {**self.embeddings}
        yield EMBEDDING_SECONDS, _build_histograms(self.embedding_seconds)
        yield RERANKS, {**self.reranks}
        yield RERANK_SECONDS, _build_histograms(self.rerank_seconds)
        yield from self._list_route_series()
        yield REFUSALS, {**self.refusals}
        yield BUDGET_WARNINGS, {}  # the process that counts limits reports them
        # From 0 on, so that Prometheus sees the first failure as an increase.
        yield WEBHOOKS, {(outcome,): 0 for outcome in WEBHOOK_OUTCOMES}
        yield COST, {**self.cost}
        yield UNUSED_FIELDS, {**self.unused_fields}
        yield PROJECT_REQUESTS, {(project,): count for project, count in self.project_requests.items()}
        yield PROJECT_TOKENS, {**self.project_tokens}
        yield PROJECT_COST, {**self.project_cost}

    def _list_route_series(self) -> Iterator[Series]:
        """Yields the series of routes."""
        routes = {**self.routes}
        yield (
            ROUTE_ATTEMPTS,
            {
                (*labels, outcome): count
                for labels, counts in routes.items()
                for outcome, count in counts.outcomes.items()
            },
        )
        yield ROUTE_RESTS, {labels: counts.rests for labels, counts in routes.items() if counts.rests}
        yield (
            ROUTE_FIRST_EVENT,
            {labels: counts.first_events.build_histogram() for labels, counts in routes.items()},
        )
        yield ROUTE_IN_FLIGHT, {labels: counts.in_flight for labels, counts in routes.items()}


def _label_by_type(**counters: Counter[str]) -> dict[tuple[str, ...], Value]:
    """Builds the values of one family from several counters. The labels are the model and the counter's
    name."""
    return {(model, name): count for name, counts in counters.items() for model, count in counts.items()}


def _build_histograms(times: dict[str, Timer]) -> dict[tuple[str, ...], Value]:
    """Builds the histograms of timers, each under its label."""
    return {(label,): timer.build_histogram() for label, timer in times.items()}
