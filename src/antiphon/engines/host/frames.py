"""The messages between the HTTP process and an engine host. `ipc.frames` encodes them.

The structs of `engines.base` are sent unchanged. One frame carries all events of a decode step.
"""

import msgspec

from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.request import Constraint, EmbedRequest, Vectors
from antiphon.engines.base import (
    EngineInfo,
    MediumLayout,
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
from antiphon.processes.ipc import Frame, Hello

# --- to the host; `call` is a number that the HTTP process gives, never twice on one connection -----


class GenerateCall(Frame, tag=1):
    """Begins one sequence; answered by StartedReply, ScoresReply, StepsReply and FinishedReply. An ErrorReply
    can come in the place of any of them."""

    call: int
    request: TokenRequest


class CancelCall(Frame, tag=2):
    """Ends the call; no reply follows. The host ignores a call that has already ended."""

    call: int


class TokenizePiecesCall(Frame, tag=4):
    """Answered by TokensReply or ErrorReply."""

    call: int
    pieces: tuple[TextPiece, ...]
    add_bos: bool


class VocabularyCall(Frame, tag=5):
    """Answered by VocabularyReply or ErrorReply."""

    call: int


class InfoCall(Frame, tag=6):
    """Answered by InfoReply or ErrorReply."""

    call: int


class AddAdapterCall(Frame, tag=7):
    """Answered by DoneReply or ErrorReply."""

    call: int
    digest: str
    path: str


class RemoveAdapterCall(Frame, tag=8):
    """Answered by DoneReply or ErrorReply."""

    call: int
    digest: str


class CheckCall(Frame, tag=9):
    """Answered by DoneReply or ErrorReply."""

    call: int
    constraint: Constraint


class EmbedCall(Frame, tag=10):
    """Begins to make vectors; answered by StartedReply, VectorsReply and DoneReply. An ErrorReply can come in
    the place of any of them."""

    call: int
    request: EmbedRequest


class HoldCall(Frame, tag=11):
    """Gives the host a medium, until the call is cancelled. It is answered by HeldReply or ErrorReply, and so
    is each MediumPart."""

    call: int
    medium: Medium
    """Without its data, which follow in MediumParts unless the host has encoded the medium before."""
    byte_count: int
    """The bytes of the data."""
    cache_salt: str


class MediumPart(Frame, tag=13):
    """The next bytes of the medium of a HoldCall, sent after a HeldReply that lacks them."""

    call: int
    data: bytes


class LayOutCall(Frame, tag=12):
    """Answered by LayoutsReply or ErrorReply."""

    call: int
    shapes: tuple[MediumShape, ...]


# --- from the host ------------------------------------------------------------------------------------------


class StartedReply(Frame, tag=1):
    """The sequence is in the batch."""

    call: int
    value: SequenceStarted


class StepsReply(Frame, tag=2):
    """The sequence has new tokens."""

    call: int
    value: Steps


class FinishedReply(Frame, tag=3):
    """The sequence is complete; the last reply to its call."""

    call: int
    value: SequenceFinished


class ErrorReply(Frame, tag=4):
    """The call ended with this error; the last reply to it."""

    call: int
    value: ErrorReport


class TokensReply(Frame, tag=6):
    """The result of `tokenize`."""

    call: int
    value: tuple[int, ...]


class VocabularyReply(Frame, tag=7):
    """The result of `vocabulary`."""

    call: int
    value: Vocabulary


class InfoReply(Frame, tag=8):
    """The result of `info`."""

    call: int
    value: EngineInfo


class ScoresReply(Frame, tag=9):
    """Log-probabilities of a part of the prompt."""

    call: int
    value: PromptScores


class DoneReply(Frame, tag=10):
    """The call is done."""

    call: int


class VectorsReply(Frame, tag=11):
    """Some vectors of the call's texts."""

    call: int
    value: Vectors


class HeldReply(Frame, tag=13):
    """The host has so many bytes of the medium of a HoldCall, or needs no more."""

    call: int
    byte_count: int


class LayoutsReply(Frame, tag=14):
    """The result of `lay_out`."""

    call: int
    value: tuple[MediumLayout, ...]


class AbsenceNotice(Frame, tag=12):
    """Tells why the host can serve no call now. It is not a reply to a call."""

    reason: str
    """A sentence for callers; empty when the host can serve calls again."""


HostCall = (
    GenerateCall
    | TokenizePiecesCall
    | VocabularyCall
    | InfoCall
    | AddAdapterCall
    | RemoveAdapterCall
    | CheckCall
    | EmbedCall
    | HoldCall
    | LayOutCall
)
EventReply = StartedReply | ScoresReply | StepsReply | FinishedReply
"""Replies to a GenerateCall. Each has an event of the sequence; the last one is a FinishedReply."""
EmbedReply = StartedReply | VectorsReply
"""Replies to an EmbedCall, before its DoneReply."""

ToHost = Hello | CancelCall | MediumPart | HostCall
Reply = (
    StartedReply
    | ScoresReply
    | StepsReply
    | FinishedReply
    | ErrorReply
    | TokensReply
    | VocabularyReply
    | InfoReply
    | DoneReply
    | VectorsReply
    | HeldReply
    | LayoutsReply
)
ToClient = Hello | AbsenceNotice | Reply


def build_event_reply(call: int, event: TokenEvent | Vectors) -> Reply:
    """The message for one event of a sequence, or for some vectors."""
    match event:
        case Steps():
            return StepsReply(call, event)
        case Vectors():
            return VectorsReply(call, event)
        case SequenceStarted():
            return StartedReply(call, event)
        case PromptScores():
            return ScoresReply(call, event)
        case SequenceFinished():
            return FinishedReply(call, event)


TO_HOST = msgspec.msgpack.Decoder(tuple[int, list[ToHost]])
TO_CLIENT = msgspec.msgpack.Decoder(tuple[int, list[ToClient]])
