"""Carries out the memory strategy `summary`: older turns are replaced by a summary that a model writes.

A cached summary is used again while it and the turns after it fit the budget. A new summary covers enough
turns to free about half of the budget. It continues the summary before it, so a growing conversation pays for
each turn once. `antiphon.memory.summaries` contains the prompts. A cut is the index of the first message that
a summary does not cover. The writer is the model that writes the summary.
"""

from contextlib import AbstractContextManager

from antiphon.domain.context import Context
from antiphon.domain.memory import MEMORY_FIELD, MemoryReport, Summary
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.values import Struct
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidValue,
    ModelNotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.memory.summaries import (
    SummaryCache,
    build_writer_messages,
    choose_summary_tokens,
    digest_beginnings,
    insert_summary,
    list_cuts,
)
from antiphon.memory.turns import PromptBudget, TurnSearch, count_leading, cut_middle, write_transcript
from antiphon.pipeline.child import ChildCalls, name_model_in_errors
from antiphon.pipeline.count_prompt import (
    choose_prompt_budget,
    count_messages,
    measure_conversation,
    require_conversation,
)
from antiphon.pipeline.open_route import OpenRoute, RoutePolicy
from antiphon.pipeline.routing import resolve

MAX_PARTS = 32
"""The most parts of a summary that one request writes."""


class SummaryStages(Struct, frozen=True):
    """The strategy and its cache, built once per process."""

    models: ModelRegistry
    policy: RoutePolicy
    cache: SummaryCache

    async def summarise(
        self, request: GenerationRequest, strategy: Summary, model: Model, context: Context, calls: ChildCalls
    ) -> tuple[tuple[Message, ...], MemoryReport]:
        """Returns the messages that the model sees, and a report. Raises InvalidValue if no summary makes the
        conversation fit the budget, and ModelNotFound or PermissionDenied for the writer."""
        writer = await self._resolve_writer(strategy, model, context)
        size = await measure_conversation(request, model, context, self.policy)
        budget = choose_prompt_budget(strategy, size, request, model)
        messages = require_conversation(request).messages
        if size.tokens is not None and size.tokens <= budget.tokens:
            return messages, MemoryReport(len(messages))
        summary_request = SummaryRequest(request, strategy, model, writer, budget)
        return await SummarisedConversation(self, summary_request, context, calls).choose()

    async def _resolve_writer(self, strategy: Summary, model: Model, context: Context) -> Model:
        """Returns the writer, the model that writes the summary. Raises ModelNotFound, PermissionDenied and
        UnsupportedParameter, which name the field."""
        if strategy.model is None:
            return model
        try:
            writer = resolve(self.models, strategy.model, context.actor)
        except (ModelNotFound, PermissionDenied) as error:
            raise type(error)(
                f"{strategy.model_field}: {error.message}", param=strategy.model_field
            ) from None
        try:
            profile = await writer.engine.profile()
        except EngineError:  # a model that is not loaded is checked when it writes
            return writer
        if profile.embedding is not None or not profile.chat:
            raise UnsupportedParameter(
                f"{strategy.model_field}: {writer.name} answers no conversations; name a model that does, or "
                "leave it out",
                param=strategy.model_field,
            )
        return writer


class SummaryRequest(Struct, frozen=True):
    """A request whose conversation is too long for its budget."""

    request: GenerationRequest
    strategy: Summary
    model: Model
    writer: Model
    """The model that writes the summary."""
    budget: PromptBudget


class SummarisedConversation:
    """Shortens one conversation to its budget by a summary."""

    def __init__(
        self, stages: SummaryStages, summary_request: SummaryRequest, context: Context, calls: ChildCalls
    ) -> None:
        self._stages = stages
        self._request = summary_request.request
        strategy = summary_request.strategy
        self._tokens_field, self._model_field = strategy.tokens_field, strategy.model_field
        self._model = summary_request.model
        self._writer = summary_request.writer
        self._budget = summary_request.budget.tokens
        self._remedy = "raise it" if summary_request.budget.is_raisable else "ask for a shorter answer"
        self._summary_tokens = choose_summary_tokens(self._budget)
        self._context = context
        self._calls = calls
        self._messages = require_conversation(summary_request.request).messages
        self._cuts = list_cuts(self._messages)
        digests = digest_beginnings(self._messages, self._cuts, summary_request.writer.name)
        self._digests = dict(zip(self._cuts, digests, strict=True))

    async def choose(self) -> tuple[tuple[Message, ...], MemoryReport]:
        """Returns messages that fit the budget, one of them a summary."""
        digests = list(self._digests.values())
        cached = await self._stages.cache.find(self._context.actor.project, digests)
        summaries = {cut: cached[digest] for cut, digest in self._digests.items() if digest in cached}
        cut = max(summaries, default=None)
        if cut is None or not await self._fits(insert_summary(self._messages, cut, summaries[cut])):
            cut = await self._write_up_to(await self._choose_cut(), summaries)
        messages = await self._shorten(cut, summaries[cut])
        return messages, MemoryReport(len(messages), summarised=len(self._messages) - len(messages))

    async def _choose_cut(self) -> int:
        """Returns the cut of a new summary, chosen so that the messages after it take about half of the
        budget. Raises InvalidValue if the last turn leaves no room for a summary."""
        search = TurnSearch(self._messages, self._budget // 2)
        while (messages := search.choose()) is not None:
            search.add_count(await self._count_tokens(messages))
        cut = (
            search.first_kept_index
            if search.first_kept_index in self._digests
            else max(self._cuts, default=None)
        )
        if cut is None or not await self._fits(insert_summary(self._messages, cut, ""), self._summary_tokens):
            raise InvalidValue(
                f"{self._tokens_field}: the prompt can have {self._budget} tokens, and the system messages "
                f"with the last turn leave no room for a summary of {self._summary_tokens}; {self._remedy}, "
                "or shorten them",
                param=self._tokens_field,
            )
        return cut

    async def _write_up_to(self, end_cut: int, summaries: dict[int, str]) -> int:
        """Writes the missing parts of the summary up to a cut, and caches each part. Returns the cut. Raises
        InvalidValue if that takes too many calls."""
        cut = max(
            (summary_cut for summary_cut in summaries if summary_cut <= end_cut),
            default=count_leading(self._messages),
        )
        for _ in range(MAX_PARTS):
            if cut >= end_cut:
                return end_cut
            cut, text = await self._write_part(cut, end_cut, summaries.get(cut))
            summaries[cut] = text
            project, digest = self._context.actor.project, self._digests[cut]
            await self._stages.cache.save(project, digest, text, self._calls.started_ms)
        if cut >= end_cut:
            return end_cut
        raise InvalidValue(
            f"{MEMORY_FIELD}: one request writes at most {MAX_PARTS} parts of a summary, and this "
            "conversation needs more; the parts that were written are stored, so send the request again, or "
            f"name a model with a longer context in {self._model_field}",
            param=MEMORY_FIELD,
        )

    async def _write_part(self, begin_cut: int, end_cut: int, previous: str | None) -> tuple[int, str]:
        """Writes a summary of as many turns as fit the writer's context. Returns its cut and its text. Raises
        InvalidValue if the writer returns no text."""
        cut, request = await self._choose_part(begin_cut, end_cut, previous)
        with self._name_writer():
            answer = await self._calls.generate(request)
        text = answer.choices[0].text.strip()
        if not text:
            raise InvalidValue(
                f"{self._model_field}: the model {self._writer.name} wrote no summary; name another model",
                param=self._model_field,
            )
        return cut, text

    async def _choose_part(
        self, begin_cut: int, end_cut: int, previous: str | None
    ) -> tuple[int, GenerationRequest]:
        """Returns the cut of the next part, and the request to the writer."""
        cuts = [cut for cut in self._cuts if begin_cut < cut <= end_cut]
        request_that_fits: GenerationRequest | None = None
        low, high = 0, len(cuts)
        index = high - 1  # usually all of it fits
        while low < high:
            request = self._build_request(previous, write_transcript(self._messages[begin_cut : cuts[index]]))
            if await self._fits_writer(request):
                request_that_fits, low = request, index + 1
            else:
                high = index
            index = (low + high) // 2
        if request_that_fits is None:
            return cuts[0], await self._build_long_turn_request(previous, begin_cut, cuts[0])
        return cuts[low - 1], request_that_fits

    async def _build_long_turn_request(
        self, previous: str | None, begin_cut: int, cut: int
    ) -> GenerationRequest:
        """Returns the request to the writer for one turn that is longer than the writer's context. Cuts the
        middle of the turn's text."""
        transcript = write_transcript(self._messages[begin_cut:cut])
        length = len(transcript) // 2
        while length:
            request = self._build_request(previous, cut_middle(transcript, length))
            if await self._fits_writer(request):
                return request
            length //= 2
        raise InvalidValue(
            f"{self._model_field}: the context of {self._writer.name} is too short to write a summary of "
            f"{self._summary_tokens} tokens; name another model, or lower {self._tokens_field}",
            param=self._model_field,
        )

    def _build_request(self, previous: str | None, transcript: str) -> GenerationRequest:
        """Returns the request to the writer for a part of the summary."""
        conversation = Conversation(build_writer_messages(previous, transcript))
        return GenerationRequest(
            self._writer.name, (conversation,), output=Output(max_tokens=self._summary_tokens, choices=1)
        )

    async def _fits_writer(self, request: GenerationRequest) -> bool:
        """Whether the request fits the writer's context."""

        async def check_size(route: OpenRoute[bool]) -> bool:
            engine = route.engine
            size = (await engine.prepare(request, self._context)).size
            context_length = None if size.is_counted else (await engine.profile()).context_length
            return context_length is None or size.prompt_tokens + self._summary_tokens <= context_length

        try:
            with self._name_writer():
                async with OpenRoute(self._writer, check_size, self._context, self._stages.policy) as fits:
                    return fits
        except ContextLengthExceeded:
            return False

    def _name_writer(self) -> AbstractContextManager[None]:
        """Returns a context that adds the writer to the errors of its calls."""
        return name_model_in_errors(self._model_field, f"{self._writer.name} could not write a summary")

    async def _shorten(self, cut: int, text: str) -> tuple[Message, ...]:
        """Returns the messages with the summary. Cuts the end of the summary until the messages fit, because
        the model's tokenizer can make more tokens than the writer's."""
        while True:
            messages = insert_summary(self._messages, cut, text)
            if not text or await self._fits(messages):
                return messages
            text = text[: len(text) * 3 // 4]

    async def _fits(self, messages: tuple[Message, ...], free_tokens: int = 0) -> bool:
        """Whether a prompt of these messages fits the budget and leaves `free_tokens` of it free."""
        tokens = await self._count_tokens(messages)
        return tokens is not None and tokens + free_tokens <= self._budget

    async def _count_tokens(self, messages: tuple[Message, ...]) -> int | None:
        """Returns the tokens of a prompt of these messages; None if they do not fit the context."""
        return await count_messages(self._request, messages, self._model, self._context, self._stages.policy)
