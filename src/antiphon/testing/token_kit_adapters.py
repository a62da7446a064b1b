"""Whether a token engine keeps the contract of `Adapting`: `await check_adapters(engine, adapters)`.

What is refused, what is told apart, what goes on when one is removed. All else is `check_token_engine`'s.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from antiphon.engines.base import Adapting, Steps, TokenEngine, TokenRequest
from antiphon.errors import InvalidValue
from antiphon.testing.probe import Probe, Run
from antiphon.testing.rules import PATIENCE, beside, require, require_error
from antiphon.testing.token_kit import sentences

UNKNOWN = "0" * 64
LENGTH = 12


async def check_adapters(
    engine: TokenEngine,
    adapters: Mapping[str, str],
    *,
    tolerance: float = 0.0,
    patience: float = PATIENCE,
) -> None:
    """Raises AssertionError with the sentence of the first rule that `engine` breaks. It must be loaded and
    idle.

    `adapters`: paths by digest, of at least two adapters that the engine does not know yet; each must change
    what is said. `tolerance`: how far log-probabilities may differ between a sequence alone and in a batch.
    """
    probe = await Probe.of(engine, tolerance, patience)
    probe.prompts, probe.adapters = tuple(await sentences(engine)), adapters
    for rule in ADAPTER_RULES:
        await rule(probe)
        await probe.require_idle(f"a sequence that is over leaves nothing behind ({rule.__name__})")


@asynccontextmanager
async def _add_adapters(probe: Probe) -> AsyncIterator[Adapting]:
    """The engine with all adapters; without any afterwards."""
    engine = probe.engine
    if not isinstance(engine, Adapting):
        raise TypeError(f"{type(engine).__name__} takes no adapters: it is not Adapting")
    for digest, path in probe.adapters.items():
        await engine.add_adapter(digest, path)
    yield engine
    for digest in probe.adapters:
        await engine.remove_adapter(digest)


def _request(probe: Probe, digest: str | None) -> TokenRequest:
    return replace(probe.request(max_tokens=LENGTH, logprobs=2), adapter=digest)


async def unknown_adapters_are_refused(probe: Probe) -> None:
    rule = "an adapter that was not added is refused with InvalidValue, before a sequence begins"
    await require_error(probe.run(_request(probe, UNKNOWN)), InvalidValue, rule)
    async with _add_adapters(probe) as engine:
        await require_error(
            engine.add_adapter(UNKNOWN, "there-is-no-such-file.gguf"),
            InvalidValue,
            "a file that cannot be read is refused with InvalidValue",
        )
        await require_error(probe.run(_request(probe, UNKNOWN)), InvalidValue, rule)
        for digest, path in probe.adapters.items():
            await engine.add_adapter(digest, path)  # one that is there already is no error
        await engine.remove_adapter(UNKNOWN)  # nor is an unknown one
    for digest in probe.adapters:
        await require_error(probe.run(_request(probe, digest)), InvalidValue, rule)


async def adapters_never_answer_for_each_other(probe: Probe) -> None:
    names = (None, *probe.adapters)
    async with _add_adapters(probe):
        # under a salt of its own each is computed anew
        salted = {name: replace(_request(probe, name), cache_salt=f"alone with {name}") for name in names}
        first = {name: await probe.run(salted[name]) for name in names}
        for name in reversed(names):
            for other in names:
                _require_same(first[other], await probe.run(_request(probe, other)), probe)
            _require_same(first[name], await probe.run(_request(probe, name)), probe)
        wanted = [name for name in names for _ in range(3)]
        runs = await probe.runs([_request(probe, name) for name in wanted])
        for name, run in zip(wanted, runs, strict=True):
            _require_same(first[name], run, probe)
        said = {(run.tokens, run.logprobs) for run in first.values()}
        require(len(said) == len(names), "each adapter changes what is said")


def _require_same(first: Run, run: Run, probe: Probe) -> None:
    """Equal tokens and, up to the tolerance, log-probabilities, as far as the two best can be told apart."""
    rule = "what is computed with one adapter, or with none, never shows in an answer with another"
    for place, token in enumerate(first.tokens):
        (_, best), (_, second) = first.alternatives[place]
        if run.tokens[place] != token:
            require(best - second < probe.tolerance, rule)
            return
        require(abs(run.logprobs[place] - first.logprobs[place]) <= probe.tolerance, rule)


async def a_removed_adapter_serves_to_the_end(probe: Probe) -> None:
    digest = next(iter(probe.adapters))
    long = replace(probe.request(max_tokens=40), adapter=digest)
    async with _add_adapters(probe) as engine:
        whole = await probe.run(long)
        async with aclosing(probe.engine.generate(long)) as events:
            await anext(events)
            await engine.remove_adapter(digest)
            await require_error(
                probe.run(_request(probe, digest)),
                InvalidValue,
                "an adapter that was removed is refused to new sequences at once",
            )
            async with beside(probe.run(probe.request(max_tokens=4))):
                steps = [event async for event in events if isinstance(event, Steps)]
        tokens = tuple(token for step in steps for token in step.tokens)
        require(
            tokens == whole.tokens or (probe.tolerance and len(tokens) == len(whole.tokens)),
            "a sequence goes on with an adapter that was removed meanwhile",
        )


ADAPTER_RULES = (
    unknown_adapters_are_refused,
    adapters_never_answer_for_each_other,
    a_removed_adapter_serves_to_the_end,
)
