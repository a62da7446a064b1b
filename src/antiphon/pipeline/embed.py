"""Embeddings of texts, and rankings of documents. They pass the same stages as a generation."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import RerankEngine, TextEmbeddingEngine
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.account import EMBEDDING, RERANK, RequestAccount
from antiphon.pipeline.open_route import OpenRoute, RoutePolicy
from antiphon.pipeline.plans import RequestPlan, RequestPlans
from antiphon.pipeline.rules import Accounting
from antiphon.pipeline.spans import EMBEDDINGS, open_operation


class CountedAnswer(Protocol):
    """An answer with the number of tokens that the model read."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def source(self) -> UsageSource: ...


T = TypeVar("T", bound=CountedAnswer)


class EmbeddingStages(Struct, frozen=True):
    """The stages of embeddings and rankings."""

    plans: RequestPlans
    policy: RoutePolicy
    accounting: Accounting | None = None

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of a request. After an error it tries other routes, like a generation.
        Cancelling ends the work.

        Raises ModelNotFound, PermissionDenied if the caller's key does not allow the model,
        UnsupportedParameter for a model that makes no vectors, and LedgerFull if the ledger cannot record
        the request.
        """
        plan = self.plans.find(request.model, context.actor)
        if context.span is not None:
            context = open_operation(EMBEDDINGS, plan.model, context, context.span)
        answer = partial(_embed, replace(request, model=plan.model.name))
        return await self._run(answer, plan, request.model, context, EMBEDDING, len(request.inputs))

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of a request's documents. Raises the errors of `embed`, and UnsupportedParameter
        for a model that is not a reranker."""
        plan = self.plans.find(request.model, context.actor)
        if context.span is not None:
            context = open_operation(RERANK, plan.model, context, context.span)
        answer = partial(_rank, replace(request, model=plan.model.name))
        return await self._run(answer, plan, request.model, context, RERANK, len(request.documents))

    async def _run(
        self,
        answer_on: Callable[[OpenRoute[T]], Awaitable[T]],
        plan: RequestPlan,
        requested_name: str,
        context: Context,
        kind: str,
        inputs: int,
    ) -> T:
        """Returns the answer of the first route that works."""
        context.progress.model = plan.model.name
        account = RequestAccount(
            plan, requested_name, context, self.policy.metrics, self.accounting, kind=kind, inputs=inputs
        )
        async with account:
            await account.reserve_early()
            async with OpenRoute(plan.model, answer_on, context, self.policy, account) as answer:
                account.count((Usage(answer.prompt_tokens, 0, source=answer.source),))
        return answer


async def _embed(request: EmbeddingRequest, route: OpenRoute[Embeddings]) -> Embeddings:
    """Makes the vectors on one route."""
    if not isinstance(route.engine, TextEmbeddingEngine):
        raise UnsupportedParameter(
            f"{request.model} makes no vectors; name an embedding model", param="model"
        )
    prepared = await route.engine.prepare_embedding(request, route.context)
    await route.begin_attempt(prepared.size, prepared.report)
    answer = await prepared.embed(route.context)
    route.record_first_event()
    return answer


async def _rank(request: RerankRequest, route: OpenRoute[Ranking]) -> Ranking:
    """Scores the documents on one route."""
    if not isinstance(route.engine, RerankEngine):
        raise UnsupportedParameter(f"{request.model} is not a reranker; name a reranker", param="model")
    prepared = await route.engine.prepare_rerank(request, route.context)
    await route.begin_attempt(prepared.size, prepared.report)
    answer = await prepared.rank(route.context)
    route.record_first_event()
    return answer
