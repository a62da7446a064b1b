"""Engines that answer one text, or vectors of words, and remember what they were asked."""

from array import array

from antiphon.domain.context import EngineReport
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, Embeddings, GenerationRequest, Ranking
from antiphon.engines.base import RequestSize
from antiphon_testing.scripted_engine import ScriptedEngine


def list_messages(request: GenerationRequest) -> tuple[Message, ...]:
    """The messages of the request's only conversation."""
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


class OneAnswer:
    """A prepared embedding or ranking whose answer is known."""

    def __init__(self, answer):
        self.size, self.report = RequestSize(answer.prompt_tokens, 0), EngineReport()
        self._answer = answer

    async def embed(self, context):
        return self._answer

    async def rank(self, context):
        return self._answer


class VectorEngine(ScriptedEngine):
    """Makes a vector of two numbers, or scores by the number of letters; fails as told."""

    failure = rank_failure = None
    dimensions = 2

    async def prepare_embedding(self, request, context):
        self.prepared += 1
        if self.failure:
            raise self.failure
        vectors = b"".join(
            array("f", vector_of(text.text)[: self.dimensions]).tobytes() for text in request.inputs
        )
        return OneAnswer(Embeddings(vectors, self.dimensions, 5))

    async def prepare_rerank(self, request, context):
        self.documents = request.documents
        if self.rank_failure:
            raise self.rank_failure
        return OneAnswer(Ranking(tuple(float(-len(text)) for text in request.documents), 7))


def vector_of(text):
    return (1.0, 0.0) if "yellow" in text else (0.0, 1.0)
