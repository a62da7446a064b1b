"""Handles chats, embeddings and rankings of JamAI Base's clients."""

from functools import partial

import msgspec

from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.calls import GenerationCall, RerankCall
from antiphon.dialects.common.embeddings import EmbeddingsAnswer, answer_embeddings
from antiphon.dialects.common.endpoints import answer_generation, build_report_headers, decode_body
from antiphon.dialects.http_types import EVENT_STREAM, JSON, Answer, Request, Response
from antiphon.dialects.jamai.decode import decode_chat, decode_embeddings, decode_rerank, list_modalities
from antiphon.dialects.jamai.encode import JamaiChatEncoder
from antiphon.dialects.jamai.fields import JamaiScope
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.wire_types import (
    JamaiChatChunk,
    JamaiChatCompletion,
    JamaiChatRequest,
    JamaiEmbeddingRequest,
    JamaiRerankRequest,
    RerankingAnswer,
    RerankingMeta,
    RerankingShape,
    RerankingUsage,
)
from antiphon.dialects.services import ResponseMeta, Services
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import Conversation, Ranking
from antiphon.domain.values import replace

DIALECT = "jamai"

_encode = msgspec.json.Encoder().encode


class JamaiGeneration:
    """The endpoints that use a model."""

    def __init__(self, report_unknown: bool = False, strict: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused. `strict`: a schema with a
        keyword that is not enforced is refused."""
        self._reports_unknown = report_unknown
        self._decode_chat = partial(decode_chat, report_unknown=report_unknown, strict=strict)

    def declare(self) -> tuple[Endpoint, ...]:
        answers = {JSON: JamaiChatCompletion, EVENT_STREAM: JamaiChatChunk}
        chat = _declare(JamaiScope.CHAT, self.answer_chat, JamaiChatRequest, "completions")
        embed = _declare(JamaiScope.EMBEDDINGS, self.embed, JamaiEmbeddingRequest, "embeddings")
        rank = _declare(JamaiScope.RERANK, self.rank, JamaiRerankRequest, "rerank")
        return (
            replace(chat, summary="Answer a conversation, as JamAI Base does", answers=answers),
            replace(embed, summary="Make vectors of texts, as JamAI Base", answers={JSON: EmbeddingsAnswer}),
            replace(rank, summary="Rank documents by a query", answers={JSON: RerankingAnswer}),
        )

    async def answer_chat(self, request: Request, services: Services) -> Answer:
        encoder, origin = JamaiChatEncoder(request), Origin(DIALECT, JamaiScope.CHAT)
        return await answer_generation(self._read_chat, encoder, origin, request, services)

    async def _read_chat(self, request: Request, services: Services) -> tuple[GenerationCall, ResponseMeta]:
        call = await decode_body(self._decode_chat, request, services)
        name, shown_id = await choose_model(call.request.model, list_needs(call), request, services)
        call = replace(call, request=replace(call.request, model=name))
        return call, services.create_meta(shown_id)

    async def embed(self, request: Request, services: Services) -> Answer:
        call = await decode_body(
            partial(decode_embeddings, report_unknown=self._reports_unknown), request, services
        )
        name, shown_id = await choose_model(call.request.model, frozenset({"embed"}), request, services)
        call = replace(call, request=replace(call.request, model=name))
        return await answer_embeddings(
            call, shown_id, Origin(DIALECT, JamaiScope.EMBEDDINGS), request, services
        )

    async def rank(self, request: Request, services: Services) -> Answer:
        call = await decode_body(
            partial(decode_rerank, report_unknown=self._reports_unknown), request, services
        )
        name, shown_id = await choose_model(call.request.model, frozenset({"rerank"}), request, services)
        context = services.build_context(request, Origin(DIALECT, JamaiScope.RERANK))
        ranking = await services.rerank(replace(call.request, model=name), context)
        headers = build_report_headers(call, request, services)
        return Response(encode_ranking(shown_id, call, ranking), headers=headers)


def _declare(path: str, handler: Handler, shape: type, tag: str) -> Endpoint:
    """Declares a POST endpoint that needs the right to generate."""
    body = RequestBody(shape=shape)
    return Endpoint(method="POST", path=path, handler=handler, right=Right.GENERATE, body=body, tag=tag)


def list_needs(call: GenerationCall) -> frozenset[str]:
    """Returns the capabilities that a model needs for a chat."""
    chats = [prompt for prompt in call.request.prompts if isinstance(prompt, Conversation)]
    modalities = frozenset[str]().union(*(list_modalities(chat.messages) for chat in chats))
    has_tools = any(chat.tools is not None and chat.tools.tools for chat in chats)
    return modalities | {"chat"} | ({"tool"} if has_tools else set())


def encode_ranking(model: str, call: RerankCall, ranking: Ranking) -> bytes:
    results = [
        RerankingShape(index=index, relevance_score=ranking.scores[index]) for index in ranking.order()
    ]
    usage = RerankingUsage(len(call.request.documents), ranking.prompt_tokens)
    return _encode(RerankingAnswer(results=results, usage=usage, meta=RerankingMeta(model)))
