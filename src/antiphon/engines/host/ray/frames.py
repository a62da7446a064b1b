"""The messages between a driver and a replica: one call, and each of its replies, as msgpack.

They carry the messages of `engines.host.frames`. Ray sends them as bytes and neither reads nor unpickles
them. Errors are sent as replies, because exceptions would be pickled.
"""

import msgspec

import antiphon
from antiphon.engines.host.frames import ErrorReply, HostCall, Reply
from antiphon.engines.host.ray.config import DeploymentSpec
from antiphon.errors import AntiphonError, EngineError, ErrorReport
from antiphon.processes.ipc import Frame

CALL_NUMBER = 0
"""The call number in every message. It needs no meaning here, because Ray matches replies to calls."""


class ReplicaCall(Frame, tag=1):
    """A call to one replica."""

    release: str
    call: HostCall
    adapter: str = ""
    """The path of the adapter that the call needs, on every machine. A new replica loads it first."""


class ReplicaReply(Frame, tag=1):
    """The reply to a call that makes no token."""

    replica: str
    """The name of the replica that replies."""
    reply: Reply


_ENCODER = msgspec.msgpack.Encoder()
_CALLS = msgspec.msgpack.Decoder(ReplicaCall)
_REPLIES = msgspec.msgpack.Decoder(Reply)
_REPLICA_REPLIES = msgspec.msgpack.Decoder(ReplicaReply)


def encode_call(call: HostCall, adapter: str = "") -> bytes:
    """Encodes a call to a replica."""
    return _ENCODER.encode(ReplicaCall(antiphon.__version__, call, adapter))


def decode_call(frame: bytes) -> ReplicaCall:
    """Decodes a call. Raises EngineError if the driver has another release."""
    try:
        call = _CALLS.decode(frame)
    except msgspec.DecodeError as problem:
        raise EngineError("the replica cannot read this call", cause=str(problem)) from None
    if call.release != antiphon.__version__:
        raise EngineError(
            f"the replica has release {antiphon.__version__} of Antiphon, and the server {call.release}; "
            "install the same release on all machines"
        )
    return call


def encode_reply(reply: Reply) -> bytes:
    """Encodes one reply of a stream."""
    return _ENCODER.encode(reply)


def encode_error(error: AntiphonError) -> bytes:
    """Encodes the error that ends a stream."""
    return _ENCODER.encode(ErrorReply(CALL_NUMBER, ErrorReport.from_error(error)))


def decode_reply(frame: bytes) -> Reply:
    """Decodes one reply of a stream. Raises EngineError."""
    try:
        reply: Reply = _REPLIES.decode(frame)
    except msgspec.DecodeError as problem:
        raise EngineError("the reply of a replica cannot be read", cause=str(problem)) from None
    return reply


def encode_replica_reply(replica: str, reply: Reply) -> bytes:
    """Encodes the reply to a call that makes no token."""
    return _ENCODER.encode(ReplicaReply(replica, reply))


def decode_replica_reply(frame: bytes) -> ReplicaReply:
    """Decodes the reply to a call that makes no token. Raises EngineError."""
    try:
        return _REPLICA_REPLIES.decode(frame)
    except msgspec.DecodeError as problem:
        raise EngineError("the reply of a replica cannot be read", cause=str(problem)) from None


# --- deployments and load errors ----------------------------------------------------------------------------

LOAD_FAILED = "antiphon cannot load: "
"""The text before an encoded error in Ray Serve's messages, which repeat an exception as text."""


def encode_spec(spec: DeploymentSpec) -> bytes:
    """Encodes a deployment for its replicas. Equal deployments give equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(encoded: bytes) -> DeploymentSpec:
    """Decodes a deployment."""
    return msgspec.json.decode(encoded, type=DeploymentSpec)


def describe_load_error(error: AntiphonError) -> str:
    """Returns the message for an exception, in which `find_load_error` finds the error again."""
    return f"{LOAD_FAILED}{msgspec.json.encode(ErrorReport.from_error(error)).decode()}\n"


def find_load_error(message: str) -> AntiphonError | None:
    """Returns the error of a replica that a message of Ray Serve repeats; None if it repeats none."""
    _, mark, rest = message.partition(LOAD_FAILED)
    if not mark:
        return None
    try:
        return msgspec.json.decode(rest.splitlines()[0], type=ErrorReport).to_exception()
    except (msgspec.DecodeError, IndexError):
        return None
