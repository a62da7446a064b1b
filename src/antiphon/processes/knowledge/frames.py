"""The messages between an HTTP process and the knowledge process. `processes.ipc` encodes them.

A call names a method of `KnowledgeIndex`. The method's annotations determine the encoding of its arguments
and result, so both ends use the same format.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import GenericAlias
from typing import get_type_hints

import msgspec

from antiphon.domain.values import Struct
from antiphon.errors import ErrorReport
from antiphon.processes.ipc import Frame, FrameError, Hello
from antiphon.retrieval.base import KnowledgeIndex


class IndexCall(Frame, tag=1):
    """Calls a method. Answered by IndexResult or IndexFailure."""

    call: int
    method: str
    arguments: msgspec.Raw
    """An array of the arguments for all parameters, in order."""


class CancelIndexCall(Frame, tag=2):
    """Cancels a call for whose result nobody waits. Has no answer. A write that has started can be
    completed."""

    call: int


class IndexResult(Frame, tag=1):
    """The call is done."""

    call: int
    value: msgspec.Raw


class IndexFailure(Frame, tag=2):
    """The call ended with this error."""

    call: int
    error: ErrorReport


Encoded = msgspec.Raw
"""Encoded arguments, or an encoded result."""

ToKnowledge = Hello | IndexCall | CancelIndexCall

FromKnowledge = Hello | IndexResult | IndexFailure

TO_KNOWLEDGE = msgspec.msgpack.Decoder(tuple[int, list[ToKnowledge]])

FROM_KNOWLEDGE = msgspec.msgpack.Decoder(tuple[int, list[FromKnowledge]])


class MethodCodec(Struct, frozen=True):
    """Encodes and decodes the arguments of one method, and decodes its result."""

    signature: inspect.Signature
    """Without `self`."""
    argument_decoder: "msgspec.msgpack.Decoder[tuple[object, ...]]"
    result_decoder: "msgspec.msgpack.Decoder[object]"

    def encode_arguments(self, *arguments: object, **named: object) -> msgspec.Raw:
        """Encodes the arguments of a call, and the default values of those that are left out. Raises
        FrameError."""
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        return encode_value(tuple(bound.arguments.values()))

    def decode_arguments(self, encoded: msgspec.Raw) -> Mapping[str, object]:
        """Returns the arguments by name. Raises FrameError."""
        try:
            return dict(zip(self.signature.parameters, self.argument_decoder.decode(encoded), strict=True))
        except msgspec.DecodeError as problem:
            raise FrameError(f"a call's arguments cannot be read: {problem}") from None


def encode_value(value: object) -> msgspec.Raw:
    """Encodes the arguments of a call, as a tuple, or its result. Raises FrameError for a lone surrogate,
    which cannot be encoded."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(value))
    except UnicodeEncodeError:
        raise FrameError("a text contains half of a character") from None


@lru_cache(maxsize=1)
def load_methods() -> Mapping[str, MethodCodec]:
    """Returns the codec of each method of `KnowledgeIndex`."""
    return {
        name: _build_codec(method)
        for name, method in vars(KnowledgeIndex).items()
        if inspect.iscoroutinefunction(method)
    }


def _build_codec(method: Callable[..., object]) -> MethodCodec:
    signature, hints = inspect.signature(method), get_type_hints(method)
    result = hints.pop("return")
    return MethodCodec(
        signature.replace(parameters=list(signature.parameters.values())[1:]),
        msgspec.msgpack.Decoder(GenericAlias(tuple, tuple(hints.values()))),
        msgspec.msgpack.Decoder(result),
    )
