"""The token engine's rules about allowed tokens, closing, and the queue.

Tokens are allowed or forced by bans, penalties and constraints. Each rule tests a case whose effect is
certain. A constrained sequence satisfies its constraint or ends with an error, and `min_tokens` applies
beside every kind of constraint. An engine without constraints must refuse them.

Closing works at once, at any point of a sequence, and does not affect other sequences. The queue is bounded,
in total and for one actor; siblings are never refused.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from antiphon.domain.request import Constraint, ConstraintKind, Mirostat, Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import (
    ConstraintEngine,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenEvent,
    TokenRequest,
)
from antiphon.errors import AntiphonError, EngineBusy, InvalidValue, Overloaded, UnsupportedParameter
from antiphon_testing.rules import (
    GREEDY,
    TokenProbe,
    require,
    require_end,
    require_error,
    require_soon,
    run_beside,
)

OVERWHELMING = 1000.0
"""A bias greater than any difference of logits."""
HOT = Sampling(temperature=1.5, seed=5)

NAME_SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a"]}},
    "required": ["name"],
    "additionalProperties": False,
}
ENDING_CONSTRAINTS = (
    (Constraint(ConstraintKind.REGEX, "[ab]{3}"), "[ab]{3}"),
    (Constraint(ConstraintKind.REGEX, "hello there"), "hello there"),
    (Constraint(ConstraintKind.CHOICE, json.dumps(["left", "right"])), "left|right"),
    (Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(NAME_SCHEMA)), r'\{"name": "a"\}'),
    (Constraint(ConstraintKind.GBNF, 'root ::= "hello" [ab]'), "hello[ab]"),
    (Constraint(ConstraintKind.LARK, 'start: "hello" /[ab]/'), "hello[ab]"),
)
"""Constraints that end by themselves, some in forced tokens, and the outputs that they allow."""
ENDLESS_CONSTRAINT = Constraint(ConstraintKind.REGEX, "[ab]+")
MAX_ENDING_TOKENS = 40
"""More tokens than any output of ENDING_CONSTRAINTS has."""


async def check_logit_bias(probe: TokenProbe) -> None:
    free = await probe.run(probe.build_request(max_tokens=1, logprobs=1))
    (likeliest,) = free.tokens
    banned = replace(GREEDY, logit_bias=((likeliest, -OVERWHELMING),))
    run = await probe.run(probe.build_request(max_tokens=1, sampling=banned, logprobs=1))
    require(run.tokens != free.tokens, "a token with an overwhelming negative bias is not drawn")
    is_near = abs(run.alternatives[0][0][1] - free.alternatives[0][0][1]) <= max(probe.tolerance, 1e-3)
    require(is_near, "log-probabilities are those before the bias")
    token = probe.prompts[0][-1]
    forced = replace(HOT, logit_bias=((token, OVERWHELMING),))
    run = await probe.run(probe.build_request(max_tokens=4, sampling=forced))
    require(set(run.tokens) == {token}, "a token with an overwhelming bias is always drawn")


async def check_allowed_tokens(probe: TokenProbe) -> None:
    allowed = tuple(dict.fromkeys(_list_plain_tokens(probe)))[:5]
    for sampling in (GREEDY, HOT):
        request = replace(sampling, allowed_token_ids=allowed)
        run = await probe.run(probe.build_request(max_tokens=12, sampling=request))
        require(set(run.tokens) <= set(allowed), "allowed_token_ids are the only ones drawn")
        require(len(run.tokens) == 12, "allowing no end token lets a sequence go on to max_tokens")


async def check_banned_sequences(probe: TokenProbe) -> None:
    async def greedy(max_tokens: int, *banned: tuple[int, ...]) -> tuple[int, ...]:
        sampling = replace(GREEDY, ignore_eos=True, banned=banned)
        return (await probe.run(probe.build_request(max_tokens=max_tokens, sampling=sampling))).tokens

    free = first, second = await greedy(2)
    require((await greedy(1, (first,)))[0] != first, "a banned token is not drawn")
    pair = await greedy(2, free)
    require(
        pair[0] == first and pair[1] != second,
        "only the last token of a banned sequence is forbidden, and only after the others",
    )
    after_prompt = await greedy(1, (probe.prompts[0][-1], first))
    require(after_prompt == free[:1], "tokens of the prompt do not begin a banned sequence")
    if first != second:
        require(await greedy(2, (second, first)) == free, "a banned sequence is banned in its order only")


async def check_min_tokens(probe: TokenProbe) -> None:
    end, word = probe.vocabulary.end_ids[0], probe.prompts[0][-1]
    for token, stop, cause in ((end, (), StopCause.END), (word, (word,), StopCause.STOP_TOKEN)):
        sampling = replace(GREEDY, min_tokens=5, logit_bias=((token, OVERWHELMING),))
        run = await probe.run(probe.build_request(max_tokens=12, sampling=sampling, stop=stop))
        require(token not in run.tokens[:5], "no end and no stop token is drawn in the first min_tokens")
        require(
            run.tokens[5:] == (token,) and run.cause is cause,
            "after min_tokens an end or stop token may be drawn, and ends the sequence",
        )


async def check_ignore_eos(probe: TokenProbe) -> None:
    end = probe.vocabulary.end_ids[0]
    sampling = replace(GREEDY, ignore_eos=True, logit_bias=((end, OVERWHELMING),))
    run = await probe.run(probe.build_request(max_tokens=6, sampling=sampling))
    require(run.tokens == (end,) * 6, "with ignore_eos end tokens are drawn like others and end nothing")
    require(run.cause is StopCause.LENGTH, "with ignore_eos a sequence ends at max_tokens")
    stopped = await probe.run(probe.build_request(max_tokens=6, sampling=sampling, stop=(end,)))
    require(
        stopped.tokens == (end,) and stopped.cause is StopCause.STOP_TOKEN,
        "a stop token ends a sequence that ignores the model's end tokens",
    )


async def check_penalties(probe: TokenProbe) -> None:
    allowed = tuple(dict.fromkeys(_list_plain_tokens(probe)))[:6]
    limited_sampling = replace(GREEDY, allowed_token_ids=allowed)
    for sampling in (
        replace(limited_sampling, frequency_penalty=OVERWHELMING),
        replace(limited_sampling, presence_penalty=OVERWHELMING),
    ):
        run = await probe.run(probe.build_request(max_tokens=6, sampling=sampling))
        require(
            sorted(run.tokens) == sorted(allowed),
            "a token of the output is penalised, and a token of the prompt alone is not",
        )
    sampling = replace(GREEDY, allowed_token_ids=allowed[:2], frequency_penalty=OVERWHELMING)
    run = await probe.run(probe.build_request(max_tokens=6, sampling=sampling))
    require(
        sorted(run.tokens) == sorted(allowed[:2] * 3),
        "frequency_penalty counts each occurrence of a token in the output",
    )


async def check_mirostat(probe: TokenProbe) -> None:
    greedy = await probe.run(probe.build_request(max_tokens=8))
    steered = replace(GREEDY, mirostat=Mirostat())
    run = await probe.run(probe.build_request(max_tokens=8, sampling=steered))
    require(run.tokens == greedy.tokens, "temperature 0 is greedy, also with Mirostat")
    narrow = replace(HOT, mirostat=Mirostat(target=1e-9, rate=0.0))
    run = await probe.run(probe.build_request(max_tokens=8, sampling=narrow))
    require(run.tokens == greedy.tokens, "a target near 0 leaves only the likeliest token")
    drawn = [
        await probe.run(
            probe.build_request(max_tokens=8, sampling=replace(HOT, mirostat=Mirostat(target=8.0)))
        )
        for _ in range(2)
    ]
    require(drawn[0].tokens == drawn[1].tokens or probe.tolerance > 0, "equal seeds draw equally by Mirostat")


def _list_plain_tokens(probe: TokenProbe) -> list[int]:
    """Returns the prompt tokens without a special meaning."""
    special = {*probe.vocabulary.end_ids, probe.vocabulary.bos_id}
    return [token for prompt in probe.prompts for token in prompt if token not in special]


SAMPLING_RULES = (
    check_logit_bias,
    check_allowed_tokens,
    check_banned_sequences,
    check_min_tokens,
    check_ignore_eos,
    check_penalties,
    check_mirostat,
)


async def check_constraint_output(probe: TokenProbe) -> None:
    """Requires the output of a constrained sequence to satisfy its constraint."""
    if not await _supports_constraints(probe):
        return
    for constraint, allowed in ENDING_CONSTRAINTS:
        for logprobs in (None, 0):
            run = await probe.run(_build_request(probe, constraint, logprobs=logprobs))
            text = b"".join(probe.vocabulary.pieces[token] for token in run.tokens).decode(errors="replace")
            require(
                re.fullmatch(allowed, text) and run.cause is StopCause.END,
                "a constrained sequence satisfies its constraint, and ends when the output is complete",
            )


async def check_constraint_end(probe: TokenProbe) -> None:
    """If the constraint allows only the end, no token may be drawn."""
    if not await _supports_constraints(probe):
        return
    endings: set[str] = set()
    for constraint, _ in ENDING_CONSTRAINTS:
        for logprobs in (None, 0):
            free = await probe.run(_build_request(probe, constraint, logprobs=logprobs))
            length = len(free.tokens) - 1
            await _require_end_after(
                probe, _build_request(probe, constraint, length, logprobs=logprobs), length
            )
            for min_tokens in (length + 1, MAX_ENDING_TOKENS):
                endings.add(
                    await _require_refusal(
                        probe, _build_request(probe, constraint, min_tokens, logprobs=logprobs)
                    )
                )
    require(len(endings) == 1, "all constraints give the same error for min_tokens that they cannot reach")


async def check_constraint_min_tokens(probe: TokenProbe) -> None:
    if not await _supports_constraints(probe):
        return
    ends = tuple((token, 100.0) for token in probe.vocabulary.end_ids)
    for logprobs in (None, 0):
        eager = replace(GREEDY, logit_bias=ends)
        run = await probe.run(_build_request(probe, ENDLESS_CONSTRAINT, 9, logprobs=logprobs, sampling=eager))
        early = set(run.tokens[:9]) & set(probe.vocabulary.end_ids)
        require(
            not early and len(run.tokens) == 10 and run.cause is StopCause.END,
            "a constraint that can continue does so until min_tokens is reached",
        )


async def check_forced_stop_tokens(probe: TokenProbe) -> None:
    """Requires a stop token to end a constrained sequence, also if the constraint allows no other token."""
    if not await _supports_constraints(probe):
        return
    forced_text = Constraint(ConstraintKind.REGEX, "hello there")
    unstopped_run = await probe.run(_build_request(probe, forced_text))
    stop_token = unstopped_run.tokens[-2]
    length_to_stop = unstopped_run.tokens.index(stop_token) + 1
    request = _build_request(probe, forced_text, min_tokens=length_to_stop - 1)
    run = await probe.run(replace(request, stop_token_ids=(stop_token,)))
    require(
        run.tokens == unstopped_run.tokens[:length_to_stop] and run.cause is StopCause.STOP_TOKEN,
        "a forced stop token ends the sequence",
    )
    request = _build_request(probe, forced_text, min_tokens=length_to_stop)
    await _require_refusal(probe, replace(request, stop_token_ids=(stop_token,)))


async def _supports_constraints(probe: TokenProbe) -> bool:
    """Returns whether the engine takes constraints. Requires an engine without constraints to refuse them."""
    constraint = ENDING_CONSTRAINTS[0][0]
    if isinstance(probe.engine, ConstraintEngine):
        try:
            await probe.engine.check(constraint)
        except UnsupportedParameter:
            pass
        else:
            return True
    await require_error(
        probe.run(_build_request(probe, constraint)),
        UnsupportedParameter,
        "an engine that takes no constraints refuses requests that have one with UnsupportedParameter",
    )
    return False


async def _require_end_after(probe: TokenProbe, request: TokenRequest, min_tokens: int) -> None:
    """Requires a constrained sequence to end by itself after more than `min_tokens` tokens."""
    rule = "a constrained sequence may end once min_tokens is reached"
    try:
        run = await probe.run(request)
    except InvalidValue as refusal:
        raise AssertionError(f"{rule} (raised {refusal!r})") from refusal
    require(len(run.tokens) > min_tokens and run.cause is StopCause.END, rule)


async def _require_refusal(probe: TokenProbe, request: TokenRequest) -> str:
    """Returns the error message of a sequence that cannot continue with any token."""
    rule = "if only end or stop tokens are allowed before min_tokens, InvalidValue is raised"
    try:
        run = await probe.run(request)
    except InvalidValue as refusal:
        return refusal.message
    raise AssertionError(f"{rule} (made {len(run.tokens)} tokens)")


def _build_request(
    probe: TokenProbe,
    constraint: Constraint,
    min_tokens: int = 0,
    *,
    logprobs: int | None = None,
    sampling: Sampling = GREEDY,
) -> TokenRequest:
    """Builds a request with a constraint and with `min_tokens` as its `min_tokens`."""
    sampling = replace(sampling, min_tokens=min_tokens)
    request = probe.build_request(max_tokens=MAX_ENDING_TOKENS + 2, sampling=sampling, logprobs=logprobs)
    return replace(request, constraint=constraint)


CONSTRAINT_RULES = (
    check_constraint_output,
    check_constraint_end,
    check_constraint_min_tokens,
    check_forced_stop_tokens,
)


async def check_closing_unread(probe: TokenProbe) -> None:
    """Closes a generator that was never read, and requires the engine to be idle afterwards."""
    events = probe.engine.generate(probe.build_request())
    await probe.close(events, "closing a generator that was never read ends at once")
    await probe.require_idle("a generator that was never read holds no sequence")


async def check_closing_queued(probe: TokenProbe) -> None:
    """Fills every place, then closes a waiting sequence."""
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.build_request(index % len(probe.prompts)))
            await _read_to_first_step(await stack.enter_async_context(aclosing(events)))
        waiting = probe.engine.generate(probe.build_request())
        await probe.close_while_waiting(waiting, 0.05, "a queued sequence closes at once")
        load = await probe.get_load()
        require(load.queued == 0, "a queued sequence that was closed does not wait any more")
    await probe.require_idle("sequences that were closed together free all their resources")


async def check_closing_in_prefill(probe: TokenProbe) -> None:
    words = [token for prompt in probe.prompts for token in prompt]
    size = probe.info.context_length - 8
    prompt = tuple((words * (size // len(words) + 1))[:size])
    request = replace(probe.build_request(), prompt=PromptTokens(prompt))
    for delay_s in (0.0, 0.02):
        events = probe.engine.generate(request)
        first = await anext(events)
        require(isinstance(first, SequenceStarted), "SequenceStarted comes before the prompt is computed")
        await probe.close_while_waiting(
            events, delay_s, "a sequence closes at once while its prompt is computed"
        )
        await probe.require_idle("closing in prefill frees the sequence")


async def check_closing_in_decode(probe: TokenProbe) -> None:
    for delay_s in (0.0, 0.01):
        events = probe.engine.generate(probe.build_request())
        await _read_to_first_step(events)
        await probe.close(events, "a sequence closes at once between two tokens")
        await probe.require_idle("closing in mid-stream frees the sequence")
        events = probe.engine.generate(probe.build_request())
        await _read_to_first_step(events)
        await probe.close_while_waiting(
            events, delay_s, "a sequence closes at once while a token is computed"
        )
        await probe.require_idle("closing in mid-stream frees the sequence")


async def check_closing_finished(probe: TokenProbe) -> None:
    events = probe.engine.generate(probe.build_request(max_tokens=2))
    async for event in events:
        if isinstance(event, SequenceFinished):
            await probe.require_idle("the sequence's resources are free before SequenceFinished")
    await probe.close(events, "closing a finished sequence ends at once")


async def check_closing_isolation(probe: TokenProbe) -> None:
    """Requires other sequences to be unchanged when one is closed."""
    if probe.info.sequences < 2:
        return
    expected = await probe.run(probe.build_request(1, max_tokens=24))
    closed_events = probe.engine.generate(probe.build_request(0))
    await _read_to_first_step(closed_events)
    async with (
        run_beside(probe.run(probe.build_request(1, max_tokens=24))) as (other,),
        aclosing(closed_events),
    ):
        for _ in range(3):
            await anext(closed_events, None)
        await probe.close(closed_events, "a sequence closes at once while others go on")
        run = await other
    if probe.tolerance == 0:
        require(run.tokens == expected.tokens, "closing one sequence changes nothing in another")


async def check_closing_siblings(probe: TokenProbe) -> None:
    """Closes the first sequence of a group in its prefill, then the first sequence of another group in
    mid-stream. The other sequences continue."""
    if probe.info.sequences < 3:
        return
    expected = await probe.run(probe.build_request(max_tokens=12))
    for stage in ("prefill", "stream"):
        request = replace(probe.build_request(max_tokens=12), group=f"closing-{stage}")
        first = probe.engine.generate(replace(request, max_tokens=1000))
        await anext(first)
        siblings = (probe.run(replace(request, choice=choice)) for choice in (1, 2))
        async with run_beside(*siblings) as others:
            await asyncio.sleep(0)
            if stage == "stream":
                await _read_to_first_step(first)
            await probe.close(first, "the first of a group closes at once, though others wait for its prompt")
            rule = "siblings go on when the first one of their group is closed"
            runs = [await require_end(other, rule, probe.patience) for other in others]
        if probe.tolerance == 0:
            require(
                all(run.tokens == expected.tokens for run in runs),
                "closing a sibling changes nothing in the others",
            )


async def check_tokenizing_while_decoding(probe: TokenProbe) -> None:
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.build_request(index % len(probe.prompts)))
            await stack.enter_async_context(aclosing(events))
        text = probe.engine.tokenize([TextPiece("Hello world")], False)
        tokens = await require_end(text, "tokenizing runs beside decoding, never behind it", probe.patience)
        require(tokens, "text becomes tokens")


async def _read_to_first_step(events: AsyncGenerator[TokenEvent, None]) -> None:
    """Reads events up to the first Steps."""
    async for event in events:
        if isinstance(event, Steps):
            return


CLOSING_RULES = (
    check_closing_unread,
    check_closing_queued,
    check_closing_in_prefill,
    check_closing_in_decode,
    check_closing_finished,
    check_closing_isolation,
    check_closing_siblings,
    check_tokenizing_while_decoding,
)


async def check_full_queue(probe: TokenProbe) -> None:
    """Fills all running places and the queue, each with a request of a different actor."""
    if probe.queue is None:
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack, _build_endless_request(probe, index))
        waiting = [
            probe.run(replace(probe.build_request(max_tokens=1), actor=f"waiting-{index}"))
            for index in range(probe.queue)
        ]
        async with run_beside(*waiting):
            await _require_queued(probe, probe.queue)
            error = await _find_refusal(probe, replace(probe.build_request(max_tokens=1), actor="late"))
            require(
                isinstance(error, EngineBusy), "a sequence beyond a full queue is refused with EngineBusy"
            )
            require(error is not None and (error.retry_after or 0) > 0, "EngineBusy says when to try again")
            sibling = replace(probe.build_request(max_tokens=1), actor="running-0", group="g0", choice=1)
            async with run_beside(probe.run(sibling)) as (sibling_task,):
                await _require_queued(probe, probe.queue + 1)
                require(not sibling_task.done(), "a sibling of a queued or running sequence is never refused")
    await probe.require_idle("sequences that were closed while they waited hold no resources")


async def check_queue_share(probe: TokenProbe) -> None:
    limit = probe.queue_per_actor
    if limit is None or (probe.queue is not None and limit >= probe.queue):
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack, _build_endless_request(probe, index))
        waiting = [
            probe.run(replace(probe.build_request(max_tokens=1), actor="greedy")) for _ in range(limit)
        ]
        async with run_beside(*waiting):
            await _require_queued(probe, limit)
            error = await _find_refusal(probe, replace(probe.build_request(max_tokens=1), actor="greedy"))
            require(
                isinstance(error, Overloaded), "an actor with too many waiting is refused with Overloaded"
            )
            require(error is not None and (error.retry_after or 0) > 0, "Overloaded says when to try again")
            async with run_beside(probe.run(replace(probe.build_request(max_tokens=1), actor="other"))) as (
                other,
            ):
                await _require_queued(probe, limit + 1)
                require(not other.done(), "another actor's sequence may still wait")


async def check_priorities(probe: TokenProbe) -> None:
    """Sends a later request of an actor with a lower priority number. It is admitted before the earlier
    request of the same actor, and before no request of another actor that has its turn."""
    if probe.queue is not None and probe.queue < 3:
        return
    order: list[str] = []

    async def admit(name: str, actor: str, priority: int) -> None:
        request = replace(probe.build_request(max_tokens=1), actor=actor, priority=priority)
        async with aclosing(probe.engine.generate(request)) as events:
            await anext(events)
            order.append(name)

    async with AsyncExitStack() as stack, AsyncExitStack() as last_stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack if index else last_stack, _build_endless_request(probe, index))
        tasks = []
        for name, actor, priority in (("late", "a", 7), ("other", "b", -5), ("first", "a", -3)):
            tasks += await stack.enter_async_context(run_beside(admit(name, actor, priority)))
            await _require_queued(probe, len(tasks))
        await last_stack.aclose()
        await require_end(
            asyncio.gather(*tasks), "a waiting sequence is admitted when a place is free", probe.patience
        )
    require(order.index("first") < order.index("late"), "of one actor the lowest priority is admitted first")
    require(order[0] != "other", "a priority does not take another actor's turn")


def _build_endless_request(probe: TokenProbe, index: int) -> TokenRequest:
    """Builds a request that runs until it is closed, or until its context is full."""
    endless = replace(GREEDY, ignore_eos=True)
    return replace(probe.build_request(sampling=endless), actor=f"running-{index}", group=f"g{index}")


async def _start_sequence(probe: TokenProbe, stack: AsyncExitStack, request: TokenRequest) -> None:
    """Starts a sequence and requires SequenceStarted as its first event. The stack closes the sequence."""
    events = await stack.enter_async_context(aclosing(probe.engine.generate(request)))
    require(isinstance(await anext(events), SequenceStarted), "SequenceStarted comes first")


async def _require_queued(probe: TokenProbe, count: int) -> None:
    """Requires the load counters to reach this number of queued sequences soon."""

    async def is_reached() -> bool:
        return (await probe.get_load()).queued == count

    await require_soon(is_reached, "queued counts the sequences that wait", probe.patience)


async def _find_refusal(probe: TokenProbe, request: TokenRequest) -> AntiphonError | None:
    """Returns the error with which a request ends at once; None if it is not refused."""
    try:
        async with asyncio.timeout(probe.patience):
            await probe.run(request)
    except AntiphonError as error:
        return error
    except TimeoutError:
        return None
    return None


QUEUE_RULES = (
    check_full_queue,
    check_queue_share,
    check_priorities,
)
