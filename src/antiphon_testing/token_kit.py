"""Checks whether a token engine satisfies the contract in `antiphon.engines.base`: `check_token_engine`,
`check_adapters`.

Every rule is one function that gets a `TokenProbe`. The rules about order, counts, ends, refusals and
adapters are here. `logprob_rules` has those about log-probabilities, seeds, groups and scored prompts.
`sequence_rules` has those about allowed tokens, constraints, closing and the queue.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from antiphon.domain.values import replace
from antiphon.engines.base import (
    AdapterEngine,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenEngine,
    TokenKind,
    TokenRequest,
)
from antiphon.errors import AntiphonError, InvalidValue
from antiphon_testing.logprob_rules import SCORE_RULES, VALUE_RULES
from antiphon_testing.rules import PATIENCE, SequenceRun, TokenProbe, require, require_error, run_beside
from antiphon_testing.sequence_rules import CLOSING_RULES, CONSTRAINT_RULES, QUEUE_RULES, SAMPLING_RULES

SENTENCES = (
    "Once upon a time there was a cat that sat on the mat and thought about the world.",
    "Hello world, this is a longer sentence which the model has to read before it says anything at all.",
    "The dog is in the garden and the bird is on the roof, and neither of them can see the other one.",
)

UNKNOWN = "0" * 64
LENGTH = 12


async def check_token_engine(
    engine: TokenEngine,
    *,
    prompts: Sequence[tuple[int, ...]] | None = None,
    tolerance: float = 0.0,
    patience: float = PATIENCE,
    queue: int | None = None,
    queue_per_actor: int | None = None,
) -> None:
    """Raises AssertionError with the sentence of the first rule that `engine` breaks. The engine must be
    loaded and idle.

    `prompts`: at least three of different content and at least 16 tokens; by default English sentences.
    `tolerance`: how far log-probabilities may differ between a sequence alone and in a batch; 0 requires
    equal tokens, as exact mode promises. `queue`, `queue_per_actor`: the engine's limits, at least 16;
    without them its queue is not tested.
    """
    probe = await TokenProbe.create(engine, tolerance, patience)
    probe.prompts = tuple(prompts or await tokenize_sentences(engine))
    probe.queue, probe.queue_per_actor = queue, queue_per_actor
    for rule in RULES:
        await rule(probe)
        await probe.require_idle(f"an ended sequence holds no resources ({rule.__name__})")


async def tokenize_sentences(engine: TokenEngine) -> list[tuple[int, ...]]:
    """Tokenizes the default prompts in English."""
    return [await engine.tokenize([TextPiece(text)], True) for text in SENTENCES]


async def check_event_order(probe: TokenProbe) -> None:
    events = [event async for event in probe.engine.generate(probe.build_request(max_tokens=5))]
    require(
        isinstance(events[0], SequenceStarted) and isinstance(events[-1], SequenceFinished),
        "a sequence begins with SequenceStarted and ends with SequenceFinished",
    )
    require(
        events[1:-1] and all(isinstance(event, Steps) for event in events[1:-1]),
        "between SequenceStarted and SequenceFinished there are Steps and nothing else",
    )
    require(
        all(event.tokens for event in events if isinstance(event, Steps)),
        "Steps hold at least one token each",
    )


async def check_counts(probe: TokenProbe) -> None:
    for index, prompt in enumerate(probe.prompts):
        run = await probe.run(probe.build_request(index, max_tokens=7))
        require(
            run.counts.completion_tokens == len(run.tokens),
            "completion_tokens counts the tokens of Steps, the last included",
        )
        require(
            run.counts.prompt_tokens == run.started.prompt_tokens == len(prompt),
            "SequenceStarted and the counts agree on the prompt's tokens",
        )
        require(
            0 <= run.counts.cached_tokens < len(prompt), "at least the prompt's last token is computed anew"
        )
        require(run.started.queued >= 0, "queued is a time in seconds")


async def check_max_tokens(probe: TokenProbe) -> None:
    for limit in (1, 2, 9):
        run = await probe.run(probe.build_request(max_tokens=limit))
        require(len(run.tokens) <= limit, "a sequence makes at most max_tokens tokens")
        ended = run.tokens[-1] in probe.vocabulary.end_ids
        require(
            (run.cause is StopCause.END) == ended,
            "the cause is END exactly when the last token is an end-of-generation token",
        )
        require(
            ended or len(run.tokens) == limit, "a sequence does not end before max_tokens without a reason"
        )
        require(
            ended or run.cause is StopCause.LENGTH, "a sequence that is cut at max_tokens ends with LENGTH"
        )
        early = set(run.tokens[:-1]) & set(probe.vocabulary.end_ids)
        require(not early, "nothing comes after an end-of-generation token")


async def check_stop_tokens(probe: TokenProbe) -> None:
    unstopped_run = await probe.run(probe.build_request(max_tokens=12))
    stop = unstopped_run.tokens[len(unstopped_run.tokens) // 2]
    run = await probe.run(probe.build_request(max_tokens=12, stop=(stop,)))
    expected = unstopped_run.tokens[: unstopped_run.tokens.index(stop) + 1]
    require(
        run.tokens == expected, "a stop token ends the sequence where it first appears, and is part of Steps"
    )
    allowed = {StopCause.STOP_TOKEN} | ({StopCause.END} if stop in probe.vocabulary.end_ids else set())
    require(run.cause in allowed, "the cause of a sequence that a stop token ended is STOP_TOKEN")
    require(run.counts.completion_tokens == len(expected), "the stop token is counted")


async def check_unknown_tokens(probe: TokenProbe) -> None:
    for token in (len(probe.vocabulary.pieces), -1, 2**31):
        prompt = PromptTokens((*probe.prompts[0], token))
        await require_error(
            probe.run(TokenRequest(prompt, max_tokens=2)),
            InvalidValue,
            "generate refuses ids outside the vocabulary with InvalidValue",
        )


async def check_context_length(probe: TokenProbe) -> None:
    """Requires a sequence to end at the context length, and a longer prompt to be refused."""
    context = probe.info.context_length
    words = [token for prompt in probe.prompts for token in prompt]
    prompt = tuple((words * (context // len(words) + 1))[: context - 3])
    run = await probe.run(TokenRequest(PromptTokens(prompt), max_tokens=50))
    require(
        len(run.tokens) <= 4,
        "a sequence fills at most the context; only its last token is not computed",
    )
    require(run.cause is not StopCause.LENGTH or len(run.tokens) >= 3, "a sequence may use the whole context")
    too_long = TokenRequest(PromptTokens(prompt + prompt[:8]), max_tokens=1)
    await require_error(
        probe.run(too_long),
        AntiphonError,
        "a prompt longer than the context is refused with an error of antiphon.errors",
    )


async def check_vocabulary(probe: TokenProbe) -> None:
    table = probe.vocabulary
    require(
        len(table.pieces) == len(table.kinds) == probe.info.vocabulary,
        "the vocabulary has a piece and a kind for each of the ids that info counts",
    )
    controls = {index for index, kind in enumerate(table.kinds) if kind is TokenKind.CONTROL}
    require(not any(table.pieces[index] for index in controls), "a control token adds no text")
    require(controls <= set(table.names), "each control token has its name")
    require(
        all(0 <= index < len(table.pieces) for index in table.end_ids), "end_ids are ids of the vocabulary"
    )
    require(table.end_ids, "a model can end its turn")


async def check_tokenizer_round_trip(probe: TokenProbe) -> None:
    table = probe.vocabulary
    for text in ("Hello world", "naïve café 😀 日本語", "  two spaces\n\n\tand a tab", "a\u0000b"):
        tokens = await probe.engine.tokenize([TextPiece(text)], False)
        back = b"".join(table.pieces[token] for token in tokens)
        require(
            back in (text.encode(), b" " + text.encode()),
            "the pieces of a text's tokens are the text's bytes",
        )
        require(
            table.space_prefix or back == text.encode(),
            "only a tokenizer with space_prefix puts a space before a text",
        )
        split = [TextPiece(text[:4]), TextPiece(text[4:])]
        require(await probe.engine.tokenize(split, False) == tokens, "pieces are tokenized as one text")
    if table.bos_id is not None:
        with_bos = await probe.engine.tokenize([TextPiece("Hello")], True)
        require(with_bos[0] == table.bos_id, "add_bos puts the BOS first")
        require(
            with_bos[1:] == await probe.engine.tokenize([TextPiece("Hello")], False),
            "add_bos adds one token only",
        )


async def check_control_tokens(probe: TokenProbe) -> None:
    for index, name in probe.vocabulary.names.items():
        tokens = await probe.engine.tokenize([TextPiece(f"a{name}b")], False)
        require(
            index not in tokens,
            "the text of a control token stays text unless the piece may hold control tokens",
        )
        split = [TextPiece(name[:2]), TextPiece(name[2:]), TextPiece(name[:1], True), TextPiece(name[1:])]
        tokens = await probe.engine.tokenize(split, False)
        require(index not in tokens, "a control token is not put together from several pieces")
        mixed = [TextPiece("a"), TextPiece(name, True), TextPiece("b")]
        require(
            index in await probe.engine.tokenize(mixed, False),
            "a piece that may hold control tokens yields them",
        )


async def check_load_totals(probe: TokenProbe) -> None:
    """Requires one sequence to increase the totals of the load counters as much as it computes."""
    load_before = (await probe.engine.info()).load
    run: SequenceRun = await probe.run(probe.build_request(max_tokens=6))
    load_after = (await probe.engine.info()).load
    require(
        load_after.decoded_tokens - load_before.decoded_tokens == len(run.tokens),
        "decoded_tokens grows by the tokens that were made",
    )
    computed = run.counts.prompt_tokens - run.counts.cached_tokens
    require(
        load_after.prefill_tokens - load_before.prefill_tokens >= computed,
        "prefill_tokens grows by the prompt tokens computed",
    )
    require(load_after.steps > load_before.steps, "steps grows with each call of decode")


ORDER_RULES = (
    check_event_order,
    check_counts,
    check_max_tokens,
    check_stop_tokens,
    check_unknown_tokens,
    check_context_length,
    check_vocabulary,
    check_tokenizer_round_trip,
    check_control_tokens,
    check_load_totals,
)
RULES = (
    *ORDER_RULES,
    *VALUE_RULES,
    *CLOSING_RULES,
    *SAMPLING_RULES,
    *CONSTRAINT_RULES,
    *SCORE_RULES,
    *QUEUE_RULES,
)


async def check_adapters(
    engine: TokenEngine,
    adapters: Mapping[str, str],
    *,
    tolerance: float = 0.0,
    patience: float = PATIENCE,
) -> None:
    """Raises AssertionError with the sentence of the first rule that `engine` breaks. The engine must be
    loaded and idle.

    `adapters`: paths by digest, of at least two adapters that the engine does not know yet; each must change
    the output. `tolerance`: how far log-probabilities may differ between a sequence alone and in a batch.
    """
    probe = await TokenProbe.create(engine, tolerance, patience)
    probe.prompts, probe.adapters = tuple(await tokenize_sentences(engine)), adapters
    for rule in ADAPTER_RULES:
        await rule(probe)
        await probe.require_idle(f"an ended sequence holds no resources ({rule.__name__})")


@asynccontextmanager
async def _add_adapters(probe: TokenProbe) -> AsyncIterator[AdapterEngine]:
    """Adds all adapters to the engine, and removes them when the context is left."""
    engine = probe.engine
    if not isinstance(engine, AdapterEngine):
        raise TypeError(f"{type(engine).__name__} takes no adapters: it is no AdapterEngine")
    for digest, path in probe.adapters.items():
        await engine.add_adapter(digest, path)
    yield engine
    for digest in probe.adapters:
        await engine.remove_adapter(digest)


def _build_adapter_request(probe: TokenProbe, digest: str | None) -> TokenRequest:
    """Builds a request with an adapter, or without one if the digest is None."""
    return replace(probe.build_request(max_tokens=LENGTH, logprobs=2), adapter=digest)


async def check_unknown_adapters(probe: TokenProbe) -> None:
    rule = "an adapter that was not added is refused with InvalidValue, before a sequence begins"
    await require_error(probe.run(_build_adapter_request(probe, UNKNOWN)), InvalidValue, rule)
    async with _add_adapters(probe) as engine:
        await require_error(
            engine.add_adapter(UNKNOWN, "there-is-no-such-file.gguf"),
            InvalidValue,
            "a file that cannot be read is refused with InvalidValue",
        )
        await require_error(probe.run(_build_adapter_request(probe, UNKNOWN)), InvalidValue, rule)
        for digest, path in probe.adapters.items():
            await engine.add_adapter(digest, path)  # adding a known adapter again is no error
        await engine.remove_adapter(UNKNOWN)  # nor is removing an unknown one
    for digest in probe.adapters:
        await require_error(probe.run(_build_adapter_request(probe, digest)), InvalidValue, rule)


async def check_adapter_isolation(probe: TokenProbe) -> None:
    names = (None, *probe.adapters)
    async with _add_adapters(probe):
        # with its own salt, each is computed again
        salted = {
            name: replace(_build_adapter_request(probe, name), cache_salt=f"alone with {name}")
            for name in names
        }
        first_runs = {name: await probe.run(salted[name]) for name in names}
        for name in reversed(names):
            for other_name in names:
                _require_same(
                    first_runs[other_name], await probe.run(_build_adapter_request(probe, other_name)), probe
                )
            _require_same(first_runs[name], await probe.run(_build_adapter_request(probe, name)), probe)
        requested_names = [name for name in names for _ in range(3)]
        runs = await probe.run_all([_build_adapter_request(probe, name) for name in requested_names])
        for name, run in zip(requested_names, runs, strict=True):
            _require_same(first_runs[name], run, probe)
        outputs = {(run.tokens, run.logprobs) for run in first_runs.values()}
        require(len(outputs) == len(names), "each adapter changes the output")


def _require_same(expected: SequenceRun, run: SequenceRun, probe: TokenProbe) -> None:
    """Requires equal tokens, and log-probabilities within the tolerance, up to the first place where the
    log-probabilities of the two best tokens differ by less than the tolerance."""
    rule = "computations with one adapter are never used for another adapter or for none"
    for place, token in enumerate(expected.tokens):
        (_, best), (_, second) = expected.alternatives[place]
        if run.tokens[place] != token:
            require(best - second < probe.tolerance, rule)
            return
        require(abs(run.logprobs[place] - expected.logprobs[place]) <= probe.tolerance, rule)


async def check_adapter_removal(probe: TokenProbe) -> None:
    digest = next(iter(probe.adapters))
    long_request = replace(probe.build_request(max_tokens=40), adapter=digest)
    async with _add_adapters(probe) as engine:
        whole_run = await probe.run(long_request)
        async with aclosing(probe.engine.generate(long_request)) as events:
            await anext(events)
            await engine.remove_adapter(digest)
            await require_error(
                probe.run(_build_adapter_request(probe, digest)),
                InvalidValue,
                "an adapter that was removed is refused to new sequences at once",
            )
            async with run_beside(probe.run(probe.build_request(max_tokens=4))):
                steps = [event async for event in events if isinstance(event, Steps)]
        tokens = tuple(token for step in steps for token in step.tokens)
        require(
            tokens == whole_run.tokens or (probe.tolerance and len(tokens) == len(whole_run.tokens)),
            "a sequence goes on with an adapter that was removed meanwhile",
        )


ADAPTER_RULES = (
    check_unknown_adapters,
    check_adapter_isolation,
    check_adapter_removal,
)
