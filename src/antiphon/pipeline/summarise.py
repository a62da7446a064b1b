"""Carries out the memory strategy `summary`: older turns are replaced by a summary that a model writes.

A summary that is kept is used again as long as it and the turns after it fit the budget. A new one covers so
many turns that about half of the budget is free for the next ones. It begins with the one before it, so a
conversation that grows pays for each turn once. `antiphon.memory.summary` has the texts.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.memory import MEMORY_FIELD, MemoryReport, Summary
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.values import changed
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidValue,
    ModelNotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.memory.last_messages import TurnSearch
from antiphon.memory.summary import (
    PromptBudget,
    build_writer_messages,
    choose_summary_tokens,
    cut_middle,
    digest_beginnings,
    insert_summary,
    list_cuts,
    write_transcript,
)
from antiphon.memory.summary_caches import SummaryCache
from antiphon.memory.turns import count_leading
from antiphon.pipeline.attempt import try_routes
from antiphon.pipeline.child import ChildCalls, name_model
from antiphon.pipeline.count_prompt import (
    choose_prompt_budget,
    count_messages,
    measure_conversation,
    require_conversation,
)
from antiphon.pipeline.resolve import resolve
from antiphon.pipeline.route_use import RoutePolicy, RouteUse

MOST_CALLS = 32
"""Parts of a summary that one request writes."""


@dataclass(frozen=True, slots=True)
class SummaryStages:
    """What summaries need, built once."""

    models: ModelRegistry
    policy: RoutePolicy
    cache: SummaryCache

    async def summarise(
        self, request: GenerationRequest, strategy: Summary, model: Model, context: Context, calls: ChildCalls
    ) -> tuple[tuple[Message, ...], MemoryReport]:
        """Returns the messages that the model sees. Raises InvalidValue if no summary can make the
        conversation fit the budget, and ModelNotFound or PermissionDenied for the model that writes."""
        writer = await self._resolve_writer(strategy, model, context)
        scratch = changed(context, progress=RequestProgress())
        size = await measure_conversation(request, model, scratch, self.policy)
        budget = choose_prompt_budget(strategy, size, request, model)
        messages = require_conversation(request).messages
        if size.tokens is not None and size.tokens <= budget.tokens:
            return messages, MemoryReport(len(messages))
        work = SummaryWork(request, strategy, model, writer, budget)
        return await SummarisedConversation(self, work, scratch, calls).choose()

    async def _resolve_writer(self, strategy: Summary, model: Model, context: Context) -> Model:
        """Returns the model that writes. Raises ModelNotFound, PermissionDenied and UnsupportedParameter,
        which name the field."""
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
        except EngineError:  # a model that is not loaded is asked when it writes
            return writer
        if profile.embedding is not None or not profile.chat:
            raise UnsupportedParameter(
                f"{strategy.model_field}: {writer.name} answers no conversations; name a model that does, or "
                "leave it out",
                param=strategy.model_field,
            )
        return writer


@dataclass(frozen=True, slots=True)
class SummaryWork:
    """What one request asks for."""

    request: GenerationRequest
    strategy: Summary
    model: Model
    writer: Model
    """The model that writes the summary."""
    budget: PromptBudget


class SummarisedConversation:
    """One conversation on its way into its budget."""

    def __init__(self, stages: SummaryStages, work: SummaryWork, context: Context, calls: ChildCalls) -> None:
        """`context`: its progress is never shown."""
        self._stages = stages
        self._request = work.request
        self._tokens_field, self._model_field = work.strategy.tokens_field, work.strategy.model_field
        self._model = work.model
        self._writer = work.writer
        self._budget = work.budget.tokens
        self._remedy = "raise it" if work.budget.is_raisable else "ask for a shorter answer"
        self._room = choose_summary_tokens(self._budget)
        self._context = context
        self._calls = calls
        self._messages = require_conversation(work.request).messages
        self._cuts = list_cuts(self._messages)
        digests = digest_beginnings(self._messages, self._cuts, work.writer.name)
        self._digests = dict(zip(self._cuts, digests, strict=True))

    async def choose(self) -> tuple[tuple[Message, ...], MemoryReport]:
        """Returns the messages that fit the budget, with a summary."""
        kept = await self._find_kept()
        cut = max(kept, default=None)
        if cut is None or not await self._fits(insert_summary(self._messages, cut, kept[cut])):
            cut = await self._write_up_to(await self._choose_cut(), kept)
        chosen = await self._shorten(cut, kept[cut])
        return chosen, MemoryReport(len(chosen), summarised=len(self._messages) - len(chosen))

    async def _find_kept(self) -> dict[int, str]:
        """Returns the summaries that are kept, by the message before which each ends."""
        found = await self._stages.cache.find(self._context.actor.project, list(self._digests.values()))
        return {cut: found[digest] for cut, digest in self._digests.items() if digest in found}

    async def _choose_cut(self) -> int:
        """Returns the message before which the summary ends: what stays takes about half of the budget.
        Raises InvalidValue if the last turn leaves no room for a summary."""
        search = TurnSearch(self._messages, self._budget // 2)
        while (messages := search.choose()) is not None:
            search.add_count(await self._count(messages))
        cut = search.first_kept if search.first_kept in self._digests else max(self._cuts, default=None)
        if cut is None or not await self._fits(insert_summary(self._messages, cut, ""), self._room):
            raise InvalidValue(
                f"{self._tokens_field}: the prompt can have {self._budget} tokens, and the system messages "
                f"with the last turn leave no room for a summary of {self._room}; {self._remedy}, or shorten "
                "them",
                param=self._tokens_field,
            )
        return cut

    async def _write_up_to(self, end: int, kept: dict[int, str]) -> int:
        """Writes what is missing of the summary up to a cut, part by part, and keeps each part. Returns the
        cut. Raises InvalidValue if that takes too many calls."""
        cut = max((each for each in kept if each <= end), default=count_leading(self._messages))
        for _ in range(MOST_CALLS):
            if cut >= end:
                return end
            cut, text = await self._write_part(cut, end, kept.get(cut))
            kept[cut] = text
            project, digest = self._context.actor.project, self._digests[cut]
            await self._stages.cache.keep(project, digest, text, self._calls.at)
        if cut >= end:
            return end
        raise InvalidValue(
            f"{MEMORY_FIELD}: one request writes at most {MOST_CALLS} parts of a summary, and this "
            "conversation needs more; what was written is kept, so send it again, or name a model with a "
            f"longer context in {self._model_field}",
            param=MEMORY_FIELD,
        )

    async def _write_part(self, begin: int, end: int, previous: str | None) -> tuple[int, str]:
        """Writes the summary of as many turns as the writer's context takes. Returns its cut and its text.
        Raises InvalidValue if the model writes nothing."""
        cut, request = await self._choose_part(begin, end, previous)
        with self._name_writer():
            answer = await self._calls.generate(request)
        text = answer.choices[0].text.strip()
        if not text:
            raise InvalidValue(
                f"{self._model_field}: the model {self._writer.name} wrote no summary; name another model",
                param=self._model_field,
            )
        return cut, text

    async def _choose_part(self, begin: int, end: int, previous: str | None) -> tuple[int, GenerationRequest]:
        """Returns the cut before which the part ends, and the request that has it written."""
        cuts = [cut for cut in self._cuts if begin < cut <= end]
        found: GenerationRequest | None = None
        low, high = 0, len(cuts)
        at = high - 1  # mostly all of it fits
        while low < high:
            request = self._ask(previous, write_transcript(self._messages[begin : cuts[at]]))
            if await self._can_read(request):
                found, low = request, at + 1
            else:
                high = at
            at = (low + high) // 2
        if found is None:
            return cuts[0], await self._ask_about_long_turn(previous, begin, cuts[0])
        return cuts[low - 1], found

    async def _ask_about_long_turn(self, previous: str | None, begin: int, cut: int) -> GenerationRequest:
        """Returns the request for one turn that is longer than the writer's context. The middle of its text
        is left out."""
        transcript = write_transcript(self._messages[begin:cut])
        length = len(transcript) // 2
        while length:
            request = self._ask(previous, cut_middle(transcript, length))
            if await self._can_read(request):
                return request
            length //= 2
        raise InvalidValue(
            f"{self._model_field}: the context of {self._writer.name} is too short to write a summary of "
            f"{self._room} tokens; name another model, or lower {self._tokens_field}",
            param=self._model_field,
        )

    def _ask(self, previous: str | None, transcript: str) -> GenerationRequest:
        """Returns the request that has a part of the summary written."""
        conversation = Conversation(build_writer_messages(previous, transcript))
        return GenerationRequest(
            self._writer.name, (conversation,), output=Output(max_tokens=self._room, choices=1)
        )

    async def _can_read(self, request: GenerationRequest) -> bool:
        """Whether the request fits the writer's context."""

        async def prepare(use: RouteUse) -> bool:
            engine = use.route.engine
            size = (await engine.prepare(request, self._context)).size
            length = None if size.is_counted else (await engine.profile()).context_length
            use.close()
            return length is None or size.prompt_tokens + self._room <= length

        try:
            with self._name_writer():
                return await try_routes(self._writer, prepare, self._context, self._stages.policy)
        except ContextLengthExceeded:
            return False

    def _name_writer(self) -> AbstractContextManager[None]:
        """Names the writer in errors of its calls."""
        return name_model(self._model_field, f"{self._writer.name} could not write a summary")

    async def _shorten(self, cut: int, text: str) -> tuple[Message, ...]:
        """Returns the messages with the summary, of which the end is left out where the model's tokenizer
        makes more tokens of it than the writer's."""
        while True:
            messages = insert_summary(self._messages, cut, text)
            if not text or await self._fits(messages):
                return messages
            text = text[: len(text) * 3 // 4]

    async def _fits(self, messages: tuple[Message, ...], room: int = 0) -> bool:
        """Whether a prompt of these messages fits the budget and leaves so much room in it."""
        tokens = await self._count(messages)
        return tokens is not None and tokens + room <= self._budget

    async def _count(self, messages: tuple[Message, ...]) -> int | None:
        """Returns the tokens of a prompt of these messages; None if they are more than the context has."""
        return await count_messages(self._request, messages, self._model, self._context, self._stages.policy)
