"""Loads what a request of the Responses API refers to, and stores its response for later requests.

A response is stored after its usage is known, and before its last event is sent, since the next request can
follow at once. Answers that broke, or whose caller left, are not stored.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec
from msgspec import UNSET

from antiphon.dialects.common.endpoints import LARGE_BODY
from antiphon.dialects.http_types import Request
from antiphon.dialects.responses.encode import ResponseBuilder
from antiphon.dialects.responses.items import LoadedInput, StoredInput
from antiphon.dialects.responses.wire_types import (
    AdditionalToolsItem,
    ConfigurationItem,
    CustomCallItem,
    CustomResultItem,
    FunctionCallItem,
    FunctionResultItem,
    InputItem,
    InputText,
    ItemReference,
    MessageItem,
    OutputText,
    ReasoningItem,
    ResponsesPrompt,
    SearchCallItem,
    SearchResultItem,
    StoredItem,
)
from antiphon.dialects.services import ResponseMeta, Services
from antiphon.domain.events import EventGroup
from antiphon.domain.stored_responses import StoredResponse
from antiphon.domain.values import replace

PREFIXES: Mapping[type, str] = {
    MessageItem: "msg",
    ReasoningItem: "rs",
    FunctionCallItem: "fc",
    FunctionResultItem: "fco",
    CustomCallItem: "ctc",
    CustomResultItem: "ctco",
    SearchCallItem: "tsc",
    SearchResultItem: "tso",
    AdditionalToolsItem: "at",
    ConfigurationItem: "cu",
}
"""The beginnings of the ids that items of a request get."""

_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[StoredItem]).decode
_decode_item = msgspec.json.Decoder(StoredItem).decode


async def load_stored(wire: ResponsesPrompt, request: Request, services: Services) -> StoredInput:
    """Returns the stored items to which a request refers. Raises a RequestError for a reference to
    nothing."""
    arrays: Sequence[bytes] = ()
    if wire.previous_response_id is not None:
        arrays = await services.responses.load_chain(wire.previous_response_id, request.actor)
    items: Sequence[InputItem] = wire.input or () if not isinstance(wire.input, str) else ()
    ids = [item.id or "" for item in items if isinstance(item, ItemReference)]
    found = await services.responses.load_items(ids, request.actor) if ids else {}
    stored_bytes = sum(map(len, arrays)) + sum(len(found[id_]) for id_ in ids)
    return StoredInput(arrays, found, len(request.body) + stored_bytes > LARGE_BODY)


def read_input(wire: ResponsesPrompt, stored: StoredInput) -> LoadedInput:
    """Returns the items of a request, with those to which it refers."""
    earlier = tuple(item for array in stored.arrays for item in _decode_items(array))
    if isinstance(wire.input, str):
        return LoadedInput(earlier, (MessageItem(role="user", content=wire.input),))
    own = tuple(
        _decode_item(stored.items[item.id or ""]) if isinstance(item, ItemReference) else item
        for item in wire.input or ()
    )
    return LoadedInput(earlier, own)


def name_items(items: Sequence[StoredItem], meta: ResponseMeta) -> list[StoredItem]:
    """Returns the request's own items in the form in which they are stored: each has an id, and a message has
    parts."""
    named: list[StoredItem] = []
    for index, item in enumerate(items):
        named_item = item if item.id else replace(item, id=f"{PREFIXES[type(item)]}_{meta.id}_in{index}")
        if isinstance(named_item, MessageItem) and isinstance(named_item.content, str):
            kind = OutputText if named_item.role == "assistant" else InputText
            named_item = replace(named_item, content=[kind(text=named_item.content)])
        named.append(named_item)
    return named


async def save_response(
    builder: ResponseBuilder, loaded: LoadedInput, request: Request, services: Services, *, is_large: bool
) -> None:
    """Stores a complete response. If that fails, the response says so."""
    response = builder.response

    def build() -> StoredResponse:
        return StoredResponse(
            id=response.id,
            created=response.created_at,
            previous=response.previous_response_id,
            input=_encode(name_items(loaded.own, builder.meta)),
            output=_encode(builder.list_stored_items()),
            body=_encode(replace(response, output=UNSET)),
        )

    stored = await services.offload(build) if is_large else build()
    if not await services.responses.save(stored, request.actor):
        builder.response = replace(response, store=False)


@asynccontextmanager
async def act_at_end(
    generation: AbstractAsyncContextManager[AsyncIterator[EventGroup]], act: Callable[[], Awaitable[None]]
) -> AsyncGenerator[AsyncIterator[EventGroup], None]:
    """Returns a context of the same events. `act` is awaited after the last one, if nothing broke."""
    async with generation as groups, aclosing(_follow(groups, act)) as followed:
        yield followed


async def _follow(
    groups: AsyncIterator[EventGroup], act: Callable[[], Awaitable[None]]
) -> AsyncGenerator[EventGroup, None]:
    async for group in groups:
        yield group
    await act()
