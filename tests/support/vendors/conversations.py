"""Conversations that every vendor's wire format must support, with the model's replies.

The conversations are independent of wire formats. A vendor's test server finds the next reply by the caller's
first text (`find_reply`) and sends it in its format. The decoded events must equal the reply.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.domain.collect import CollectedChoice
from antiphon.domain.events import FinishReason
from antiphon.domain.messages import (
    Content,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    Tool,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Reasoning,
    SchemaDeclaration,
)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, in base64."""

PHOTO = "https://images.example/photo.png"

OUTPUT = Output(max_tokens=4000)


@dataclass(frozen=True)
class ModelReply:
    """The model's answer in one turn. In the text, {images} and {results} are replaced by the number of
    images and results that the vendor has received."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """The name and the arguments of each call, after the text."""
    reason: FinishReason = FinishReason.STOP

    def fill(self, images: int, results: int) -> str:
        """Returns the text with these numbers."""
        return self.text.replace("{images}", str(images)).replace("{results}", str(results))

    @property
    def end(self) -> FinishReason:
        """Why the turn ends."""
        return FinishReason.TOOL_CALLS if self.calls else self.reason


@dataclass(frozen=True)
class UserTurn:
    """The caller's parts and the reply. `results`: of the previous reply's calls, in their order."""

    reply: ModelReply
    parts: tuple[Content, ...] = ()
    results: tuple[tuple[Content, ...], ...] = ()


@dataclass(frozen=True)
class VendorConversation:
    """A conversation and the options of all its requests."""

    name: str
    turns: tuple[UserTurn, ...]
    system: str | None = None
    tools: Tools | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    output: Output = OUTPUT

    def build_request(
        self, at: int, answers: Sequence[CollectedChoice] = (), is_buffered: bool = False
    ) -> GenerationRequest:
        """Builds the request of one turn. `answers`: the answers to the previous turns."""
        messages = [] if self.system is None else [Message(Role.SYSTEM, self.system)]
        for position, turn in enumerate(self.turns[: at + 1]):
            if position:
                answer = answers[position - 1]
                messages.append(
                    Message(
                        Role.ASSISTANT,
                        answer.text,
                        tool_calls=answer.calls,
                        thinking_blocks=answer.thinking_blocks,
                    )
                )
                for call, result in zip(answer.calls, turn.results, strict=True):
                    messages.append(build_message(Role.TOOL, result, call.id))
            if turn.parts:
                parts = turn.parts if position else (TextContent(f"[{self.name}] "), *turn.parts)
                messages.append(build_message(Role.USER, parts))
        prompt = Conversation(tuple(messages), tools=self.tools, reasoning=self.reasoning)
        return GenerationRequest("m", (prompt,), output=self.output, is_buffered=is_buffered)


def build_message(role: Role, parts: Sequence[Content], call: str | None = None) -> Message:
    """A message as the dialects build it: `content` only if a part is not text."""
    text = "".join(part.text for part in parts if isinstance(part, TextContent))
    has_media = any(isinstance(part, MediaContent) for part in parts)
    return Message(role, text, tool_call_id=call, content=tuple(parts) if has_media else ())


def find_reply(text: str, answers: int) -> ModelReply:
    """Returns the model's next reply. `text`: the caller's first text. `answers`: number of previous
    replies."""
    return find_conversation(text).turns[answers].reply


def find_conversation(text: str) -> VendorConversation:
    """The conversation that begins with this text."""
    return ALL_BY_NAME[text.partition("[")[2].partition("]")[0]]


def require_reply(choice: CollectedChoice, reply: ModelReply, request: GenerationRequest) -> None:
    """Checks that the answer equals the reply, with the number of received images and results."""
    images, results = count_parts(request)
    assert choice.text == reply.fill(images, results)
    assert choice.reasoning == reply.reasoning
    assert [(call.name, json.loads(call.arguments)) for call in choice.calls] == list(reply.calls)
    assert len({call.id for call in choice.calls}) == len(choice.calls)
    assert choice.reason is reply.end


def count_parts(request: GenerationRequest) -> tuple[int, int]:
    """The images and the results of calls in a request."""
    images = results = 0
    for prompt in request.prompts:
        assert isinstance(prompt, Conversation)
        for message in prompt.messages:
            results += message.role is Role.TOOL
            images += sum(isinstance(part, MediaContent) for part in message.content)
    return images, results


def say(text: str) -> tuple[Content, ...]:
    """A text as the parts of a message."""
    return (TextContent(text),)


IMAGE = MediaContent(MediaKind.IMAGE, "image/png", PIXEL, field="messages[0].content[1].image_url")
ADDRESS = MediaContent(MediaKind.IMAGE, url=PHOTO, field="messages[0].content[1].image_url")

CITY: Mapping[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = Tool("weather", "Tells the weather.", CITY)
CLOCK = Tool("clock", "Tells the time.")
CAMERA = Tool("camera", parameters={"type": "object", "properties": {"zoom": {"type": "number"}}})
TOOLS = Tools((WEATHER, CLOCK, CAMERA))

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
EFFORT = Reasoning("high")

LISBON = ("weather", {"city": "Lisbon", "days": 3})
OSLO = ("weather", {"city": 'Oslo — "Ø"\n', "days": -1})
TIME: tuple[str, Mapping[str, object]] = ("clock", {})
PHOTOGRAPH = ("camera", {"zoom": 1.5})

CONVERSATIONS = (
    VendorConversation("a chat", (UserTurn(ModelReply("Hello there."), say("Hi.")),), system="Be brief."),
    VendorConversation(
        "several turns",
        (
            UserTurn(ModelReply("One."), say("Count.")),
            UserTurn(ModelReply("Two."), say("More.")),
            UserTurn(ModelReply("Three: naïve 👩🏽‍🚀 日本語 \u2028."), say("More.")),
        ),
    ),
    VendorConversation(
        "one call",
        (
            UserTurn(ModelReply("Let me look.", calls=(LISBON,)), say("Weather in Lisbon?")),
            UserTurn(ModelReply("{results} result: sunny."), results=(say('{"sky": "sunny"}'),)),
        ),
        tools=TOOLS,
    ),
    VendorConversation(
        "parallel calls",
        (
            UserTurn(ModelReply(calls=(LISBON, OSLO, TIME)), say("Weather in both, and the time?")),
            UserTurn(ModelReply("{results} results."), results=(say("sun"), say("snow"), say("noon"))),
            UserTurn(ModelReply("You are welcome."), say("Thanks.")),
        ),
        tools=TOOLS,
    ),
    VendorConversation(
        "a call without arguments",
        (
            UserTurn(ModelReply(calls=(TIME,)), say("What time is it?")),
            UserTurn(ModelReply("Noon."), results=(say("12:00"),)),
        ),
        tools=TOOLS,
    ),
    VendorConversation(
        "results with images",
        (
            UserTurn(ModelReply(calls=(PHOTOGRAPH, TIME)), say("What do you see, and when?")),
            UserTurn(
                ModelReply("{images} image and {results} results."),
                results=((TextContent("taken"), IMAGE), say("12:00")),
            ),
        ),
        tools=TOOLS,
    ),
    VendorConversation(
        "a required call",
        (UserTurn(ModelReply(calls=(TIME,)), say("Go.")),),
        tools=Tools((WEATHER, CLOCK), ToolChoice.REQUIRED, parallel=False, allowed=frozenset({"clock"})),
    ),
    VendorConversation(
        "images", (UserTurn(ModelReply("{images} images."), (TextContent("Compare."), IMAGE, IMAGE)),)
    ),
    VendorConversation(
        "an address of an image",
        (UserTurn(ModelReply("{images} image."), (TextContent("What is it?"), ADDRESS)),),
    ),
    VendorConversation(
        "structured output",
        (UserTurn(ModelReply('{"name": "Ada", "age": 36}'), say("Who?")),),
        output=Output(
            max_tokens=4000,
            constraint=Constraint(
                ConstraintKind.JSON_SCHEMA, PERSON, declared=SchemaDeclaration(PERSON, "person")
            ),
        ),
    ),
    VendorConversation(
        "reasoning",
        (
            UserTurn(ModelReply("42.", "Six times\n\nseven."), say("6 * 7?")),
            UserTurn(ModelReply("54.", "Six times nine."), say("6 * 9?")),
        ),
        reasoning=EFFORT,
    ),
    VendorConversation(
        "reasoning between calls",
        (
            UserTurn(ModelReply("", "First the time.", (TIME,)), say("Plan my day.")),
            UserTurn(ModelReply("Now the weather.", "Then it.", (LISBON, OSLO)), results=(say("9:00"),)),
            UserTurn(ModelReply("", "A photo.", (PHOTOGRAPH,)), results=(say("sun"), say("snow"))),
            UserTurn(ModelReply("Go out.", "All known."), results=((IMAGE,),)),
        ),
        tools=TOOLS,
        reasoning=EFFORT,
    ),
    VendorConversation(
        "a cut answer",
        (UserTurn(ModelReply("To be", reason=FinishReason.LENGTH), say("Recite.")),),
        output=Output(max_tokens=2),
    ),
    VendorConversation(
        "a withheld answer",
        (UserTurn(ModelReply("I", reason=FinishReason.CONTENT_FILTER), say("Do harm.")),),
        output=Output(max_tokens=100, stop=("END",)),
    ),
)

RECORDING = MediaContent(MediaKind.AUDIO, "audio/wav", "UklGRg==")
DETAILED = MediaContent(MediaKind.IMAGE, "image/png", PIXEL, detail="high")

SPECIAL = (
    VendorConversation(
        "a recording",
        (UserTurn(ModelReply("{images} recording."), (TextContent("Write it down."), RECORDING)),),
    ),
    VendorConversation(
        "a detailed image", (UserTurn(ModelReply("{images} image."), (TextContent("Look."), DETAILED)),)
    ),
    VendorConversation(
        "several choices",
        (UserTurn(ModelReply("Heads or tails."), say("Toss.")),),
        output=Output(max_tokens=100, choices=3),
    ),
    VendorConversation(
        "scores",
        (UserTurn(ModelReply("Very likely."), say("How likely?")),),
        output=Output(max_tokens=100, logprobs=2),
    ),
    VendorConversation(
        "a stop text",
        (UserTurn(ModelReply("Until here."), say("Tell.")),),
        output=Output(max_tokens=100, stop=("END", "\n\n")),
    ),
    VendorConversation(
        "an object",
        (UserTurn(ModelReply('{"a": 1}'), say("Any object.")),),
        output=Output(max_tokens=100, constraint=Constraint(ConstraintKind.JSON_OBJECT)),
    ),
    VendorConversation(
        "some tools",
        (UserTurn(ModelReply(calls=(TIME,)), say("Not the camera.")),),
        tools=Tools((WEATHER, CLOCK, CAMERA), allowed=frozenset({"clock", "weather"})),
    ),
    VendorConversation(
        "hidden reasoning",
        (UserTurn(ModelReply("42.", "Six times seven."), say("6 * 7?")),),
        reasoning=Reasoning("high", shown=False),
    ),
)
"""Conversations that only some vendors support."""

BY_NAME = {each.name: each for each in CONVERSATIONS}
ALL_BY_NAME = BY_NAME | {each.name: each for each in SPECIAL}
