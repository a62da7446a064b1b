"""Chooses the part of the conversation that the model sees, by the request's memory strategy.

`antiphon.memory` makes the decisions. The engine that would serve the request counts the tokens of its
prompt.
"""

from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.memory import LastMessages, LastTokens, MemoryReport, RelevantTurns
from antiphon.domain.messages import Message
from antiphon.domain.request import GenerationRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.registry import Model
from antiphon.errors import InvalidValue
from antiphon.memory.last_messages import TurnSearch, keep_last_messages
from antiphon.pipeline.attempt import try_routes
from antiphon.pipeline.child import ChildCalls
from antiphon.pipeline.count_prompt import count_tokens, replace_messages, require_conversation
from antiphon.pipeline.relevance import RelevanceStages
from antiphon.pipeline.route_use import RoutePolicy, RouteUse
from antiphon.pipeline.summarise import SummaryStages


class MemoryStages(Struct, frozen=True):
    """The stages of memory strategies that call models, built once per process."""

    summaries: SummaryStages
    relevance: RelevanceStages


async def remember(
    request: GenerationRequest, model: Model, context: Context, stages: MemoryStages, calls: ChildCalls
) -> GenerationRequest:
    """Returns the request with the messages that the model sees, and reports their number in the progress.
    Raises a RequestError."""
    strategy, messages = request.memory, require_conversation(request).messages
    if strategy is None:
        return request
    if isinstance(strategy, LastMessages):
        kept_messages = keep_last_messages(messages, strategy.k, strategy.field)
    elif isinstance(strategy, LastTokens):
        kept_messages = await _keep_last_tokens(request, strategy, model, context, stages.summaries.policy)
    elif isinstance(strategy, RelevantTurns):
        kept_messages = await stages.relevance.choose(request, strategy, model, context, calls)
    else:
        kept_messages, report = await stages.summaries.summarise(request, strategy, model, context, calls)
        context.progress.memory = report
        return replace_messages(request, kept_messages)
    context.progress.memory = MemoryReport(len(kept_messages), len(messages) - len(kept_messages))
    return replace_messages(request, kept_messages)


async def _keep_last_tokens(
    request: GenerationRequest, strategy: LastTokens, model: Model, context: Context, policy: RoutePolicy
) -> tuple[Message, ...]:
    """Returns the leading messages and as many of the last turns as fit the budget. Raises InvalidValue if
    the last turn does not fit."""
    scratch_context = replace(context, progress=RequestProgress())

    async def search(use: RouteUse) -> tuple[Message, ...]:
        turns = TurnSearch(require_conversation(request).messages, strategy.tokens)
        while (messages := turns.choose()) is not None:
            turns.add_count(
                await count_tokens(use.route.engine, replace_messages(request, messages), scratch_context)
            )
        use.close()
        if turns.kept_messages is not None:
            return turns.kept_messages
        needed_tokens, remedy = f"{turns.last_turn_tokens} tokens", "raise it"
        if turns.last_turn_tokens is None:
            needed_tokens = "more tokens than the model's context has beside the answer"
            remedy = "ask for a shorter answer"
        raise InvalidValue(
            f"{strategy.field}.tokens is {strategy.tokens}, and the system messages with the last turn take "
            f"{needed_tokens}; {remedy}, or shorten them",
            param=f"{strategy.field}.tokens",
        )

    return await try_routes(model, search, scratch_context, policy)
