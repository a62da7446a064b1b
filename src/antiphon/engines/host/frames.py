"""What travels between the gateway and an engine host. How it becomes bytes is in `ipc.frames`.

The seam's own dataclasses travel as they are; all events of one decode step travel in one frame.
"""

import msgspec

from antiphon.domain.embedding import EmbedRequest, Vectors
from antiphon.domain.request import Constraint
from antiphon.engines.base import (
    EngineInfo,
    PromptScores,
    SequenceFinished,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.errors import ErrorReport
from antiphon.processes.ipc.frames import Hello, Message

# --- to the host; `call` is a number that the gateway gives, never twice on one connection ------------------


class Generate(Message, tag=1):
    """Begin one sequence; answered by Begun, Stepped and Ended, or by Failed."""

    call: int
    request: TokenRequest


class Cancel(Message, tag=2):
    """End the call; nothing more is said about it. Unknown calls have ended by themselves."""

    call: int


class Tokenize(Message, tag=4):
    """Answered by Tokenized or Failed."""

    call: int
    pieces: tuple[TextPiece, ...]
    add_bos: bool


class AskVocabulary(Message, tag=5):
    """Answered by Table or Failed."""

    call: int


class AskInfo(Message, tag=6):
    """Answered by Facts or Failed."""

    call: int


class AddAdapter(Message, tag=7):
    """Answered by Done or Failed."""

    call: int
    digest: str
    path: str


class RemoveAdapter(Message, tag=8):
    """Answered by Done or Failed."""

    call: int
    digest: str


class Check(Message, tag=9):
    """Answered by Done or Failed."""

    call: int
    constraint: Constraint


class Embed(Message, tag=10):
    """Begin to make vectors; answered by Begun, Embedded and Done, or by Failed."""

    call: int
    request: EmbedRequest


# --- from the host ------------------------------------------------------------------------------------------


class Begun(Message, tag=1):
    """The sequence is in the batch."""

    call: int
    value: SequenceStarted


class Stepped(Message, tag=2):
    """The sequence has new tokens."""

    call: int
    value: Steps


class Ended(Message, tag=3):
    """The sequence is complete; last word on its call."""

    call: int
    value: SequenceFinished


class Failed(Message, tag=4):
    """The call ended with this error; last word on it."""

    call: int
    value: ErrorReport


class Tokenized(Message, tag=6):
    """What `tokenize` gives."""

    call: int
    value: tuple[int, ...]


class Table(Message, tag=7):
    """What `vocabulary` gives."""

    call: int
    value: Vocabulary


class Facts(Message, tag=8):
    """What `info` gives."""

    call: int
    value: EngineInfo


class Scored(Message, tag=9):
    """Log-probabilities of a part of the prompt."""

    call: int
    value: PromptScores


class Done(Message, tag=10):
    """What was asked for is done."""

    call: int


class Embedded(Message, tag=11):
    """Some vectors of the call's texts."""

    call: int
    value: Vectors


Asking = Generate | Tokenize | AskVocabulary | AskInfo | AddAdapter | RemoveAdapter | Check | Embed
ToHost = Hello | Cancel | Asking
Reply = Begun | Scored | Stepped | Ended | Failed | Tokenized | Table | Facts | Done | Embedded
ToGateway = Hello | Reply


def event_reply(call: int, event: TokenEvent | Vectors) -> Reply:
    """The message that carries one event of a sequence, or of texts whose vectors are made."""
    match event:
        case Vectors():
            return Embedded(call, event)
        case Steps():
            return Stepped(call, event)
        case SequenceStarted():
            return Begun(call, event)
        case PromptScores():
            return Scored(call, event)
        case SequenceFinished():
            return Ended(call, event)


TO_HOST = msgspec.msgpack.Decoder(tuple[int, list[ToHost]])
TO_GATEWAY = msgspec.msgpack.Decoder(tuple[int, list[ToGateway]])
