"""Puts media into prompts. A caller's picture is decoded, its cells are counted, and a mark stands for it in
the text until the text is tokenized.

The marks are private-use characters that neither the conversation nor the template has, so no text of a
caller can stand for a medium.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from antiphon.domain.context import Context
from antiphon.domain.media import Medium
from antiphon.domain.messages import Content, MediaContent, MediaKind, Message, TextContent
from antiphon.domain.request import Conversation, GenerationRequest, Prompt, RawPrompt
from antiphon.domain.values import Struct, replace
from antiphon.domain.vendor_fields import build_modality_refusal
from antiphon.engines.base import MediaEngine, MediaFacts, MediumLayout, MediumSpan, TextPiece, TokenEngine
from antiphon.errors import InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon.rendering.template.messages import collect_texts
from antiphon.rendering.template.shield import PRIVATE, PRIVATE_RANGES

ReadMedia = Callable[[Sequence[MediaContent], int, str, Context], Awaitable[Sequence[Medium]]]
"""Decodes parts of a request, whose recordings get so many samples for each second. What it keeps is for
requests with the same cache salt. Raises a RequestError that names the part."""

KIND_NAMES = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "recordings"}


class LaidMedium(Struct, frozen=True):
    """A medium of a request, with its cells and the tokens around them."""

    medium: Medium
    layout: MediumLayout


RequestMedia = Mapping[MediaContent, LaidMedium]
"""The media of a request, by their parts."""

NO_MEDIA: RequestMedia = MappingProxyType({})


def list_media(prompts: Sequence[Prompt]) -> list[MediaContent]:
    """Returns the parts of prompts that are not text, in their order."""
    contents: list[tuple[Content, ...]] = []
    for prompt in prompts:
        if isinstance(prompt, RawPrompt):
            contents.append(prompt.content)
        else:
            contents += [message.content for message in prompt.messages]
    return [part for part in chain.from_iterable(contents) if isinstance(part, MediaContent)]


def require_usable(
    request: GenerationRequest, parts: Sequence[MediaContent], facts: MediaFacts | None
) -> MediaFacts:
    """Returns the media that the model takes. Raises UnsupportedParameter for a part of another kind, and for
    a field that does not act on a prompt with media."""
    for part in parts:
        if facts is None or part.kind not in facts.kinds:
            raise build_modality_refusal(part, "this model")
    if facts is None:
        return MediaFacts(())
    output = request.output
    for field, is_set in {
        "prompt_logprobs": output.prompt_logprobs is not None,
        "truncate_prompt_tokens": output.truncate_prompt is not None,
        "suffix": bool(output.suffix),
        "echo": output.echo and any(isinstance(prompt, RawPrompt) for prompt in request.prompts),
        "chat_template": any(
            isinstance(prompt, Conversation) and prompt.template is not None for prompt in request.prompts
        ),
    }.items():
        if is_set:
            raise UnsupportedParameter(
                f"{field} is not supported in a request with {KIND_NAMES[parts[0].kind]}; leave it out",
                param=field,
            )
    return facts


async def lay_out_media(
    engine: TokenEngine, parts: Sequence[MediaContent], media: Sequence[Medium]
) -> RequestMedia:
    """Counts the cells of the media of a request. Raises a RequestError."""
    if not isinstance(engine, MediaEngine):
        raise build_modality_refusal(parts[0], "this model")
    layouts = await engine.lay_out([medium.shape for medium in media])
    return {
        part: LaidMedium(medium, layout) for part, medium, layout in zip(parts, media, layouts, strict=True)
    }


class MarkedConversation(Struct, frozen=True):
    """A conversation whose media are marks in its texts."""

    conversation: Conversation
    media: Mapping[str, MediaContent]
    """The medium of each mark, in the order of the messages."""

    def split(self, pieces: Sequence[TextPiece]) -> Iterator[tuple[TextPiece, ...] | MediaContent]:
        """Yields the rendered pieces up to the next medium, and the media. Raises TemplateRefused unless the
        template shows every medium once and in order."""
        shown, run = list[str](), list[TextPiece]()
        for piece in pieces:
            start = 0
            for index, character in enumerate(piece.text if PRIVATE.search(piece.text) else ""):
                if character in self.media:
                    yield (*run, replace(piece, text=piece.text[start:index]))
                    yield self.media[character]
                    shown.append(character)
                    run, start = [], index + 1
            run.append(replace(piece, text=piece.text[start:]) if start else piece)
        yield tuple(run)
        if shown != list(self.media):
            raise TemplateRefused(
                "the chat template drops, repeats or moves a message with an image or a recording; put it "
                "into the user's message",
                param="messages",
            )


def mark_media(conversation: Conversation, other_texts: Sequence[str]) -> MarkedConversation:
    """Replaces media by marks. `other_texts`: further texts in which no mark may be, such as those of the
    template. Raises InvalidValue if there are too few marks."""
    texts = (*collect_texts(conversation), *other_texts)
    used = {match for text in texts if not text.isascii() for match in PRIVATE.findall(text)}
    free_marks = (
        mark for private_range in PRIVATE_RANGES for mark in map(chr, private_range) if mark not in used
    )
    media: dict[str, MediaContent] = {}
    messages = []
    for message in conversation.messages:
        if not message.mixed_content:
            messages.append(message)
            continue
        text = ""
        for part in message.mixed_content:
            if isinstance(part, TextContent):
                text += part.text
                continue
            if (mark := next(free_marks, None)) is None:
                raise InvalidValue("the messages have too many images", param=part.field)
            media[mark] = part
            text += mark
        messages.append(replace(message, text=text, content=()))
    return MarkedConversation(replace(conversation, messages=tuple[Message, ...](messages)), media)


def place_medium(laid_medium: LaidMedium, start: int) -> tuple[MediumSpan, ...]:
    """Returns the spans of a medium whose layout begins at `start` in a prompt."""
    digest = laid_medium.medium.digest
    return tuple(replace(span, start=start + span.start, digest=digest) for span in laid_medium.layout.spans)
