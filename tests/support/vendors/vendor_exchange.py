"""Exchanges between an upstream dialect and a test server's function, without a connection."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.events import Event, EventGroup
from antiphon.domain.request import GenerationRequest
from antiphon.engines.vendors.base import NO_ATTRIBUTES, Attributes, UpstreamDialect, VendorError, VendorModel
from antiphon.engines.vendors.sse import EventSplitter
from tests.support.vendors.conversations import VendorConversation
from tests.support.vendors.vendor_http import VendorCall, VendorReply


class RefusedCall(Exception):
    """The vendor answered with an error."""

    def __init__(self, status: int, error: VendorError) -> None:
        super().__init__(f"{status} {error}")
        self.status = status
        self.error = error


class VendorExchange:
    """Sends requests of a dialect to a vendor's function. `calls`: what the vendor has received."""

    def __init__(
        self,
        upstream: UpstreamDialect,
        answer: Callable[[VendorCall], VendorReply],
        model: VendorModel,
        key: str,
        base_path: str,
    ) -> None:
        self.upstream = upstream
        self.model = model
        self.calls: list[VendorCall] = []
        self._answer = answer
        self._key = key
        self._base_path = base_path

    def send(self, request: GenerationRequest, attributes: Attributes = NO_ATTRIBUTES) -> VendorReply:
        """The vendor's answer. Raises RefusedCall for an error."""
        call = self.upstream.encode(request, self.model, attributes)
        name, prefix = self.upstream.credential_header
        headers = dict(self.upstream.headers) | dict(call.headers) | {name: prefix + self._key}
        lowered = {name.lower(): value for name, value in headers.items()}
        self.calls.append(VendorCall(self._base_path + call.path, lowered, call.body))
        reply = self._answer(self.calls[-1])
        if reply.status != 200:
            raise RefusedCall(reply.status, self.upstream.decode_error(reply.status, b"".join(reply.parts)))
        return reply

    def iterate(self, request: GenerationRequest) -> Iterator[Event]:
        """The events of the answer to a request."""
        reply = self.send(request)
        if reply.content_type.startswith("text/event-stream"):
            yield from self.read_stream(request, reply.parts)
        else:
            yield from self.upstream.decode_answer(request, self.model, b"".join(reply.parts))

    def read_stream(self, request: GenerationRequest, parts: Iterable[bytes]) -> Iterator[Event]:
        """The events of a streamed answer."""
        splitter, decoder = EventSplitter(), self.upstream.start_stream(request, self.model)
        for part in parts:
            for name, data in splitter.feed(part):
                yield from decoder.feed(name, data)
        yield from decoder.close()

    async def run(
        self, conversation: VendorConversation, is_buffered: bool
    ) -> list[tuple[GenerationRequest, CollectedGeneration]]:
        """Each request of a conversation with its answer."""
        exchanges: list[tuple[GenerationRequest, CollectedGeneration]] = []
        for index in range(len(conversation.turns)):
            answers = [answer.choices[0] for _, answer in exchanges]
            request = conversation.build_request(index, answers, is_buffered)
            exchanges.append((request, await collect(iterate_async(self.iterate(request)))))
        return exchanges


async def iterate_async(events: Iterable[Event]) -> AsyncIterator[EventGroup]:
    """The events as an asynchronous iterator of groups, each alone."""
    for event in events:
        yield (event,)
