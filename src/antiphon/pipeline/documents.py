"""Writes the text of documents into messages, for models that take no documents.

An engine refuses a document by its kind. The request is then prepared again with its text. So a vendor's
model that reads documents itself gets them as they are.
"""

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.identity import Actor
from antiphon.domain.messages import Content, MediaContent, MediaKind, Message, TextContent
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, RequestError, UnsupportedParameter

ReadDocument = Callable[[bytes, str], Awaitable[str]]
"""Returns the text of a document, by its bytes and its media type. Raises a RequestError."""

READING_LIMITS = QueueLimits(2, queue=64, queue_per_actor=16, item_name="documents", at_once_per_actor=1)
"""A reading takes a process with up to a gigabyte of memory, and seconds."""

MOST_CHARACTERS = 8_000_000
"""Characters of the latest texts that are kept. Agents send a document again with each turn."""

LARGE = 1 << 18
"""Characters of base64 that a thread decodes, because they would hold up other requests."""


class DocumentTexts:
    """Reads documents, and keeps the latest texts of this process, each for the project that sent it. If
    projects shared them, the time of an answer would tell that another project sent the same document."""

    def __init__(self, read_document: ReadDocument) -> None:
        self._read_document = read_document
        self._queue = FairSemaphore(READING_LIMITS)
        self._texts: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    async def write_into(self, request: GenerationRequest, actor: Actor, clock: Clock) -> GenerationRequest:
        """Returns the request with the texts of its documents. Raises a RequestError for a document that
        cannot be read."""
        prompts = [
            await self.write_into_conversation(prompt, actor, clock)
            if isinstance(prompt, Conversation)
            else prompt
            for prompt in request.prompts
        ]
        return replace(request, prompts=tuple(prompts))

    async def write_into_conversation(
        self, conversation: Conversation, actor: Actor, clock: Clock
    ) -> Conversation:
        """Returns the conversation with the texts of its documents. Raises a RequestError."""
        messages = [
            await self._write_into_message(message, actor, clock)
            if any(
                isinstance(part, MediaContent) and part.kind is MediaKind.DOCUMENT for part in message.content
            )
            else message
            for message in conversation.messages
        ]
        return replace(conversation, messages=tuple(messages))

    async def _write_into_message(self, message: Message, actor: Actor, clock: Clock) -> Message:
        """Returns the message with texts in the places of its documents. An empty line parts them from the
        texts around them."""
        parts: list[Content] = []
        follows_document = False
        for part in message.content:
            if isinstance(part, MediaContent) and part.kind is MediaKind.DOCUMENT:
                text = await self._read(part, actor, clock)
                follows_text = parts and isinstance(parts[-1], TextContent)
                parts.append(TextContent(f"\n\n{text}" if follows_text else text))
                follows_document = True
                continue
            if follows_document and isinstance(part, TextContent):
                parts.append(replace(part, text=f"\n\n{part.text}"))
            else:
                parts.append(part)
            follows_document = False
        text = "".join([part.text for part in parts if isinstance(part, TextContent)])
        return replace(message, text=text, content=tuple(parts))

    async def _read(self, part: MediaContent, actor: Actor, clock: Clock) -> str:
        """Returns the text of a document. Raises a RequestError that names its field."""
        if len(part.data) > LARGE:
            data, digest = await asyncio.to_thread(_decode, part)
        else:
            data, digest = _decode(part)
        key = (actor.project, digest)
        text = self._texts.get(key)
        if text is None:
            async with self._queue.hold(actor.caller, clock):
                try:
                    text = await self._read_document(data, part.media_type)
                except InvalidValue as error:
                    raise InvalidValue(f"{part.field}: {error.message}", param=part.field) from None
                except RequestError as error:
                    message = f"{part.field} is not supported: {error.message}"
                    raise UnsupportedParameter(message, param=part.field) from None
            self._texts[key] = text
        self._texts.move_to_end(key)
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > MOST_CHARACTERS:
            self._texts.popitem(last=False)
        return text


def _decode(part: MediaContent) -> tuple[bytes, bytes]:
    """Returns the bytes of a document, and the digest of its media type and bytes."""
    data = b64decode(part.data)
    return data, blake2b(data, digest_size=32, person=part.media_type.encode()[:16]).digest()
