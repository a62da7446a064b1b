"""`antiphon bench`: measures a server as its clients see it, and shows tables and plots, or JSON.

Each request uses a new connection.
"""

import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from statistics import quantiles

from rich.bar import Bar
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from antiphon.cli.admin_client import find_server
from antiphon.cli.client import Client, TokenUsage
from antiphon.cli.output import FAILED, CallFailed, print_json, report_errors
from antiphon.domain.values import Struct, asdict, field

BINS = 10

WIDTH = 40
"""Columns of the longest bar in a plot."""

SHOWN_PROBLEMS = 3
"""The most different reasons of failures that are shown."""

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
"""Words in the longer of the two probe prompts."""


class LoadPlan(Struct, frozen=True):
    """The requests to send."""

    concurrency: int
    requests: int
    max_tokens: int
    prompt_tokens: int
    """The approximate number of tokens of a prompt."""


class RequestTiming(Struct):
    """The times of one request in monotonic seconds: its start, its end and the arrival of each text
    piece."""

    start_time: float
    arrivals: list[float] = field(default_factory=list)
    end_time: float = 0.0
    usage: TokenUsage | None = None
    problem: str = ""


class Spread(Struct, frozen=True):
    """Percentiles, with linear interpolation between the nearest ranks."""

    median: float
    p95: float
    p99: float
    maximum: float


class Figures(Struct, frozen=True):
    """The results of a measurement. Times are in seconds."""

    answered: int
    failed: int
    wall: float
    """Seconds from the first request to the end of the last."""
    prompt_tokens: float | None
    """Tokens of the median prompt; None if the server does not count them."""
    tokens: int
    """Tokens of all answers, as the server counts them. Without its counts, the number of text pieces."""
    counted: bool
    """Whether the server counted the tokens."""
    ttft: Spread | None
    """Seconds from sending a request to the first text, including the time to connect."""
    inter_token: Spread | None
    """Seconds between two pieces of text. Most servers send one piece for each token."""
    problems: dict[str, int]
    """The number of failed requests, by reason."""

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens per second of all requests together."""
        return self.tokens / self.wall if self.wall else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.answered / self.wall if self.wall else 0.0


def run(url: str | None, model: str | None, plan: LoadPlan, as_json: bool) -> int:
    """Measures the server and prints the results; returns 1 if a request failed."""
    with report_errors():
        client = Client(*find_server(url, may_be_foreign=True))
        model_name = model or client.find_chat_model()
        with Progress(
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress:
            task = progress.add_task("requests", total=plan.requests)
            results = generate_load(client, model_name, plan, lambda _: progress.advance(task))
    figures = measure(results)
    if as_json:
        rates = {name: getattr(figures, name) for name in ("tokens_per_second", "requests_per_second")}
        print_json({"url": client.url, "model": model_name, "plan": asdict(plan), **rates, **asdict(figures)})
    else:
        print_results(f"{model_name} at {client.url}", plan, figures, results)
    return FAILED if figures.failed else 0


def measure(results: Sequence[RequestTiming]) -> Figures:
    """Computes the figures of at least one request. Of failed requests, it uses only their number and
    times."""
    answered = [result for result in results if not result.problem]
    prompts = compute_spread([float(result.usage.prompt_tokens) for result in answered if result.usage])
    return Figures(
        answered=len(answered),
        failed=len(results) - len(answered),
        wall=max(result.end_time for result in results) - min(result.start_time for result in results),
        prompt_tokens=prompts.median if prompts else None,
        tokens=sum(
            result.usage.completion_tokens if result.usage else len(result.arrivals) for result in answered
        ),
        counted=all(result.usage for result in answered),
        ttft=compute_spread(list_first_token_times(answered)),
        inter_token=compute_spread(list_token_intervals(answered)),
        problems=dict(Counter(result.problem for result in results if result.problem)),
    )


def list_first_token_times(results: Sequence[RequestTiming]) -> list[float]:
    """Returns the seconds to the first text of each request that received text."""
    return [result.arrivals[0] - result.start_time for result in results if result.arrivals]


def list_token_intervals(results: Sequence[RequestTiming]) -> list[float]:
    """Returns the seconds between consecutive pieces of text, over all requests."""
    return [later - earlier for result in results for earlier, later in pairwise(result.arrivals)]


def compute_spread(values: list[float]) -> Spread | None:
    """Returns the percentiles; None without values."""
    if not values:
        return None
    percentiles = quantiles(values if len(values) > 1 else values * 2, n=100, method="inclusive")
    return Spread(percentiles[49], percentiles[94], percentiles[98], max(values))


def print_results(title: str, plan: LoadPlan, figures: Figures, results: Sequence[RequestTiming]) -> None:
    """Prints the tables, the plots and the reasons of failures."""
    console = Console(highlight=False, markup=False)
    prompt = (
        "of unknown length" if figures.prompt_tokens is None else f"of {figures.prompt_tokens:.0f} tokens"
    )
    console.print(
        f"\n{title}: {plan.requests} requests, {plan.concurrency} at once, prompts {prompt}, "
        f"answers of at most {plan.max_tokens}\n"
    )
    if figures.answered:
        console.print(f"tokens/s, all together: {figures.tokens_per_second:.1f}")
        console.print(f"requests/s: {figures.requests_per_second:.2f}\n")
        console.print(_format_latencies(figures))
    answered = [result for result in results if not result.problem]
    for heading, values in (
        ("time to first token", list_first_token_times(answered)),
        ("between tokens", list_token_intervals(answered)),
    ):
        if values:
            console.print(f"\n{heading}", plot_histogram(values), sep="\n")
    if figures.answered and not figures.counted:
        console.print("\nThe server does not count tokens: pieces of text were counted.")
    for problem, count in list(figures.problems.items())[:SHOWN_PROBLEMS]:
        console.print(f"{count} failed: {problem}")
    if len(figures.problems) > SHOWN_PROBLEMS:
        console.print(f"and {len(figures.problems) - SHOWN_PROBLEMS} other reasons; --json shows them all")


def _format_latencies(figures: Figures) -> Table:
    """Builds a table of percentiles in milliseconds. It has few columns, so that it fits a narrow
    terminal."""
    table = Table("", box=None, pad_edge=False, header_style="bold")
    table.add_column("time to first token, ms", justify="right")
    table.add_column("between tokens, ms", justify="right")
    for name in Spread.__struct_fields__:
        spreads = (figures.ttft, figures.inter_token)
        cells = (f"{getattr(spread, name) * 1000:.1f}" if spread else "-" for spread in spreads)
        table.add_row(name, *cells)
    return table


def plot_histogram(values: list[float]) -> Table:
    """Draws one line for each range of values: its lower end, a bar and the count.

    The last range contains all values above the 99th percentile, so one outlier does not flatten the others.
    """
    low, spread = min(values), compute_spread(values)
    step = ((spread.p99 if spread else low) - low) / BINS or 1e-9
    counts = Counter(min(BINS - 1, int((value - low) / step)) for value in values)
    highest_count = max(counts.values())
    table = Table.grid(padding=(0, 2))
    for index in range(BINS):
        start = f"{(low + index * step) * 1000:10.1f} ms"
        table.add_row(start, str(counts[index]), Bar(highest_count, 0, counts[index], width=WIDTH))
    return table


def generate_load(
    client: Client, model: str, plan: LoadPlan, report_result: Callable[[RequestTiming], None]
) -> list[RequestTiming]:
    """Sends the plan's requests and calls `report_result` after each. Raises CallFailed if the probes
    fail."""

    def count_prompt_tokens(word_count: int) -> int | None:
        chunks = client.stream_chat(_build_body(model, make_prompt(word_count), 1))
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        return usages[-1].prompt_tokens if usages else None

    word_count = estimate_word_count(plan.prompt_tokens, count_prompt_tokens)
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(plan.requests):
        pending.put(make_prompt(word_count))
    finished: queue.SimpleQueue[RequestTiming] = queue.SimpleQueue()
    for _ in range(min(plan.concurrency, plan.requests)):
        # Daemon threads: Ctrl-C then ends the process with all connections.
        threading.Thread(
            target=_run_worker, args=(client, model, plan.max_tokens, pending, finished), daemon=True
        ).start()
    results = []
    for _ in range(plan.requests):
        results.append(finished.get())
        report_result(results[-1])
    return results


def estimate_word_count(token_count: int, count_prompt_tokens: Callable[[int], int | None]) -> int:
    """Returns the number of words for a prompt of `token_count` tokens.

    Two probes measure the tokens of the chat template and of each word. Without counts from the server, a
    word counts as one token. `count_prompt_tokens`: returns the tokens of a prompt with a number of words.
    """
    short_count, long_count = count_prompt_tokens(1), count_prompt_tokens(PROBE_WORDS)
    if short_count is None or long_count is None or long_count <= short_count:
        return token_count
    tokens_per_word = (long_count - short_count) / (PROBE_WORDS - 1)
    return max(1, 1 + round((token_count - short_count) / tokens_per_word))


def make_prompt(word_count: int) -> str:
    """Returns a prompt of random words, so that no prefix cache contains its beginning."""
    return " ".join(random.choices(WORDS, k=word_count))  # noqa: S311 - not a secret


def _run_worker(
    client: Client,
    model: str,
    max_tokens: int,
    pending: "queue.SimpleQueue[str]",
    finished: "queue.SimpleQueue[RequestTiming]",
) -> None:
    """Sends one request after another until no prompt is pending."""
    while True:
        try:
            prompt = pending.get_nowait()
        except queue.Empty:
            return
        timing = RequestTiming(start_time=time.monotonic())
        try:
            with closing(client.stream_chat(_build_body(model, prompt, max_tokens))) as chunks:
                for chunk in chunks:
                    if chunk.text or chunk.reasoning:
                        timing.arrivals.append(time.monotonic())
                    timing.usage = chunk.usage or timing.usage
        except CallFailed as problem:
            timing.problem = problem.message
        timing.end_time = time.monotonic()
        finished.put(timing)


def _build_body(model: str, prompt: str, max_tokens: int) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
