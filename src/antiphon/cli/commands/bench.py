"""`antiphon bench`: measures a server from outside and shows tables and plots, or JSON.

It measures latencies as a caller sees them, with its own connection.
"""

import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import quantiles

from rich.bar import Bar
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from antiphon.cli.admin_client import find_server
from antiphon.cli.client import Client, TokenUsage
from antiphon.cli.output import FAILED, CallFailed, print_json, report_errors

BINS = 10

WIDTH = 40
"""Columns of the longest bar, where there is room."""

SHOWN_PROBLEMS = 3
"""Reasons why requests failed."""

WORDS = (
    "air all and arm art ask bad bag bed big bird blue boat book box boy bread call car cat city cold day "
    "dog door dry ear east egg eye face far fire fish fly food foot four free game girl give glass gold good "
    "grass green hand hard head help hill home horse hot house ice iron job king lake land late leaf left "
    "light line long man milk moon more name near new night north one open page paper park part plan play "
    "rain read red rice river road rock room run salt sand sea seed ship shoe sing sky sleep small snow sun "
    "table ten time top tree two wall warm water way west white wind wood word year"
).split()
"""Short words, one token each in most vocabularies."""

PROBE_WORDS = 64
"""Of the request that shows how many tokens a word takes."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to send."""

    concurrency: int
    requests: int
    max_tokens: int
    prompt_tokens: int
    """About so many: the server's own count of two probes leads there."""


@dataclass(slots=True)
class Timed:
    """One request: when it began and when each piece of text came, in seconds of the monotonic clock."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage: TokenUsage | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of values, by linear interpolation between the nearest ranks."""

    median: float
    p95: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; times in seconds."""

    answered: int
    failed: int
    wall: float
    """From the first request to the end of the last."""
    prompt_tokens: float | None
    """Of the median prompt; None when the server does not count."""
    tokens: int
    """Of all answers: by the server's count, or else the pieces of text."""
    counted: bool
    """Whether the server counted them."""
    ttft: Spread | None
    """From sending a request, connecting included, to its first text."""
    inter_token: Spread | None
    """Between two pieces of text, which most servers send for each token."""
    problems: dict[str, int]
    """Why requests failed, and how many each."""

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.wall if self.wall else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.answered / self.wall if self.wall else 0.0


def run(url: str | None, model: str | None, plan: LoadPlan, as_json: bool) -> int:
    """Measures and prints; 1 when a request failed."""
    with report_errors():
        client = Client(*find_server(url))
        asked = model or client.find_generating()
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
            task = bars.add_task("requests", total=plan.requests)
            results = generate_load(client, asked, plan, lambda _: bars.advance(task))
    found = measure(results)
    if as_json:
        rates = {name: getattr(found, name) for name in ("tokens_per_second", "requests_per_second")}
        print_json({"url": client.url, "model": asked, "plan": asdict(plan), **rates, **asdict(found)})
    else:
        show(f"{asked} at {client.url}", plan, found, results)
    return FAILED if found.failed else 0


def measure(results: Sequence[Timed]) -> Figures:
    """The figures of at least one request; failed ones count only as failed."""
    good = [result for result in results if not result.problem]
    prompts = compute_spread([float(result.usage.prompt_tokens) for result in good if result.usage])
    return Figures(
        answered=len(good),
        failed=len(results) - len(good),
        wall=max(result.ended for result in results) - min(result.began for result in results),
        prompt_tokens=prompts.median if prompts else None,
        tokens=sum(each.usage.completion_tokens if each.usage else len(each.arrivals) for each in good),
        counted=all(result.usage for result in good),
        ttft=compute_spread(list_waits(good)),
        inter_token=compute_spread(list_gaps(good)),
        problems=dict(Counter(result.problem for result in results if result.problem)),
    )


def list_waits(results: Sequence[Timed]) -> list[float]:
    """Seconds to the first text of each request that had one."""
    return [result.arrivals[0] - result.began for result in results if result.arrivals]


def list_gaps(results: Sequence[Timed]) -> list[float]:
    """Seconds between neighbouring pieces of text, over all requests."""
    return [later - earlier for result in results for earlier, later in pairwise(result.arrivals)]


def compute_spread(values: list[float]) -> Spread | None:
    """None of no values."""
    if not values:
        return None
    cuts = quantiles(values if len(values) > 1 else values * 2, n=100, method="inclusive")
    return Spread(cuts[49], cuts[94], cuts[98], max(values))


def show(title: str, plan: LoadPlan, found: Figures, results: Sequence[Timed]) -> None:
    """The tables, the plots, and why requests failed."""
    console = Console(highlight=False, markup=False)
    prompt = "of unknown length" if found.prompt_tokens is None else f"of {found.prompt_tokens:.0f} tokens"
    console.print(
        f"\n{title}: {plan.requests} requests, {plan.concurrency} at once, prompts {prompt}, "
        f"answers of at most {plan.max_tokens}\n"
    )
    if found.answered:
        console.print(f"tokens/s, all together: {found.tokens_per_second:.1f}")
        console.print(f"requests/s: {found.requests_per_second:.2f}\n")
        console.print(_format_latencies(found))
    good = [result for result in results if not result.problem]
    for heading, values in (("time to first token", list_waits(good)), ("between tokens", list_gaps(good))):
        if values:
            console.print(f"\n{heading}", plot_histogram(values), sep="\n")
    if found.answered and not found.counted:
        console.print("\nThe server does not count tokens: pieces of text were counted.")
    for problem, count in list(found.problems.items())[:SHOWN_PROBLEMS]:
        console.print(f"{count} failed: {problem}")
    if len(found.problems) > SHOWN_PROBLEMS:
        console.print(f"and {len(found.problems) - SHOWN_PROBLEMS} other reasons; --json shows them all")


def _format_latencies(found: Figures) -> Table:
    """Percentiles in milliseconds, one below the other: narrow terminals hold them too."""
    table = Table("", box=None, pad_edge=False, header_style="bold")
    table.add_column("time to first token, ms", justify="right")
    table.add_column("between tokens, ms", justify="right")
    for name in Spread.__slots__:
        spreads = (found.ttft, found.inter_token)
        cells = (f"{getattr(each, name) * 1000:.1f}" if each else "-" for each in spreads)
        table.add_row(name, *cells)
    return table


def plot_histogram(values: list[float]) -> Table:
    """A line for each range of values: its lower end, a bar, how many. The last range also holds what is
    beyond the 99th percentile, so that one straggler does not flatten the rest."""
    low, found = min(values), compute_spread(values)
    step = ((found.p99 if found else low) - low) / BINS or 1e-9
    counts = Counter(min(BINS - 1, int((value - low) / step)) for value in values)
    most = max(counts.values())
    table = Table.grid(padding=(0, 2))
    for index in range(BINS):
        start = f"{(low + index * step) * 1000:10.1f} ms"
        table.add_row(start, str(counts[index]), Bar(most, 0, counts[index], width=WIDTH))
    return table


def generate_load(client: Client, model: str, plan: LoadPlan, done: Callable[[Timed], None]) -> list[Timed]:
    """Sends the plan's requests and tells each that is done. Raises CallFailed when the probes fail."""
    words = estimate_words(plan.prompt_tokens, lambda count: _measure_prompt(client, model, count))
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(plan.requests):
        waiting.put(make_prompt(words))
    finished: queue.SimpleQueue[Timed] = queue.SimpleQueue()
    for _ in range(min(plan.concurrency, plan.requests)):
        # A daemon: Ctrl-C ends the process, and with it the connections.
        threading.Thread(
            target=_run_client, args=(client, model, plan.max_tokens, waiting, finished), daemon=True
        ).start()
    results = []
    for _ in range(plan.requests):
        results.append(finished.get())
        done(results[-1])
    return results


def estimate_words(tokens: int, prompt_tokens: Callable[[int], int | None]) -> int:
    """How many words make a prompt of so many tokens, from what two prompts really took: a template takes
    some, and each word some. Servers that do not count are believed to take one token a word."""
    few, many = prompt_tokens(1), prompt_tokens(PROBE_WORDS)
    if few is None or many is None or many <= few:
        return tokens
    per_word = (many - few) / (PROBE_WORDS - 1)
    return max(1, 1 + round((tokens - few) / per_word))


def make_prompt(words: int) -> str:
    """Random words, so that no prompt begins like an earlier one and none is found in a prefix cache."""
    return " ".join(random.choices(WORDS, k=words))  # noqa: S311 - nothing secret


def _measure_prompt(client: Client, model: str, words: int) -> int | None:
    usages = [
        piece.usage for piece in client.stream_chat(_build_body(model, make_prompt(words), 1)) if piece.usage
    ]
    return usages[-1].prompt_tokens if usages else None


def _run_client(
    client: Client,
    model: str,
    max_tokens: int,
    waiting: "queue.SimpleQueue[str]",
    finished: "queue.SimpleQueue[Timed]",
) -> None:
    """One client: request after request until none is left."""
    for prompt in _drain_plan(waiting):
        timed = Timed(began=time.monotonic())
        try:
            _receive(client, _build_body(model, prompt, max_tokens), timed)
        except CallFailed as problem:
            timed.problem = problem.message
        timed.ended = time.monotonic()
        finished.put(timed)


def _drain_plan(waiting: "queue.SimpleQueue[str]") -> Iterator[str]:
    while True:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


def _receive(client: Client, body: dict[str, object], timed: Timed) -> None:
    with closing(client.stream_chat(body)) as pieces:
        for piece in pieces:
            if piece.text or piece.reasoning:
                timed.arrivals.append(time.monotonic())
            timed.usage = piece.usage or timed.usage


def _build_body(model: str, prompt: str, max_tokens: int) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
