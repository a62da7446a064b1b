"""One replica: the engine host's calls, served to drivers by Ray Serve, and the messages that both exchange.

A message is one call, or one of its replies, as msgpack. It carries a message of `engines.host.frames`. Ray
sends it as bytes and neither reads nor unpickles it. Every error becomes a reply, because exceptions would be
pickled.

Ray Serve makes the replica's object in a process of its own, and calls its methods by name. It cancels a
call's task when the driver cancels it. A replica whose engine no longer answers ends its process, and Ray
Serve starts another one at once.
"""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

import antiphon
from antiphon.domain.request import Vectors
from antiphon.engines.base import SequenceStarted, TokenEvent
from antiphon.engines.host.frames import (
    AddAdapterCall,
    DoneReply,
    EmbedCall,
    ErrorReply,
    GenerateCall,
    HostCall,
    RemoveAdapterCall,
    Reply,
    build_event_reply,
)
from antiphon.engines.host.ray.config import DeploymentSpec
from antiphon.engines.host.server import (
    create_engine,
    require_adapter_engine,
    require_embedding_engine,
    run_call,
)
from antiphon.errors import AntiphonError, EngineDied, EngineError, EngineUnavailable, ErrorReport, LoadError
from antiphon.processes.ipc import Frame
from antiphon.telemetry.logs import describe_exception, record

CALL_NUMBER = 0
"""The call number in every message. It needs no meaning here, because Ray matches replies to calls."""

_ENCODER = msgspec.msgpack.Encoder()

_REPLIES = msgspec.msgpack.Decoder(Reply)

LOAD_FAILED = "antiphon cannot load: "
"""The text before an encoded error in Ray Serve's messages, which repeat an exception as text."""

HEALTH_DEADLINE = 10.0
"""Seconds in which the engine must report its load."""

EXIT_DELAY = 0.2
"""Seconds between the last replies of a dead engine and the end of the process, so that the replies
arrive."""

ENGINE_LOST = 4
"""Exit status of a replica whose engine no longer answers."""


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


_CALLS = msgspec.msgpack.Decoder(ReplicaCall)
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


class EngineReplica:
    """Serves one loaded token engine."""

    async def __init__(self, model: str, encoded_spec: bytes) -> None:  # type: ignore[misc]  # Serve awaits it
        """Loads the model. Raises RuntimeError, whose message contains the engine's error for the driver."""
        spec = decode_spec(encoded_spec)
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))  # a core dump contains weights and prompts
        self._model = model
        self._name = self._get_own_name()
        self._adapter_locks: dict[str, asyncio.Lock] = {}
        self._loaded_adapters: set[str] = set()
        try:
            self._engine = create_engine(spec.factory)
            await self._engine.load(spec.load)
        except AntiphonError as error:
            raise RuntimeError(describe_load_error(error)) from None
        except ImportError as problem:
            load_error = LoadError(
                f"the model {spec.name} cannot be loaded in the cluster: {problem}; install it where Ray "
                "runs, or name another Python with cluster.interpreter"
            )
            raise RuntimeError(describe_load_error(load_error)) from None

    # --- called by Ray Serve --------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Raises if the engine no longer answers. Ray Serve then replaces the replica."""
        async with asyncio.timeout(HEALTH_DEADLINE):
            await self._engine.info()

    def record_routing_stats(self) -> dict[str, list[str]]:
        """Returns the facts about this replica that Ray Serve sends to request routers."""
        return {"adapters": sorted(self._loaded_adapters)}

    # --- called by drivers ----------------------------------------------------------------------------------

    async def ask(self, frame: bytes) -> bytes:
        """Returns the reply to a call that makes no token."""
        try:
            call = decode_call(frame).call
            reply = await run_call(self._engine, call)
            self._note_adapter(call)
            return encode_replica_reply(self._name, reply)
        except AntiphonError as error:
            return encode_replica_reply(self._name, ErrorReply(CALL_NUMBER, ErrorReport.from_error(error)))
        except Exception as defect:  # noqa: BLE001 - the border around an engine: one call fails
            return encode_replica_reply(
                self._name, ErrorReply(CALL_NUMBER, ErrorReport.from_error(self._log_defect(defect)))
            )

    async def generate(self, frame: bytes, number: int) -> AsyncGenerator[bytes, None]:
        """Runs one sequence, or makes vectors. `number`: the sequence's number, which only the driver's
        request router reads."""
        try:
            replica_call = decode_call(frame)
            await self._load_adapter(replica_call.call, replica_call.adapter)
            async with aclosing(self._start_events(replica_call.call)) as events:
                async for event in events:
                    yield encode_reply(build_event_reply(CALL_NUMBER, event))
            if isinstance(replica_call.call, EmbedCall):
                yield encode_reply(DoneReply(CALL_NUMBER))
        except AntiphonError as error:
            yield encode_error(error)
            await self._exit_if_dead(error)
        except Exception as defect:  # noqa: BLE001 - the border around an engine: one call fails
            yield encode_error(self._log_defect(defect))

    # --- helpers --------------------------------------------------------------------------------------------

    def _start_events(self, call: HostCall) -> AsyncGenerator[TokenEvent | SequenceStarted | Vectors, None]:
        """Begins the work of a call that makes tokens or vectors."""
        match call:
            case GenerateCall(_, request):
                return self._engine.generate(request)
            case EmbedCall(_, request):
                return require_embedding_engine(self._engine).embed(request)
            case _:
                raise EngineError(f"{type(call).__name__} makes no tokens")

    async def _load_adapter(self, call: HostCall, path: str) -> None:
        """Loads the adapter of a sequence, if this replica has not loaded it yet. Raises InvalidValue."""
        digest = call.request.adapter if isinstance(call, GenerateCall) else None
        if digest is None or digest in self._loaded_adapters or not path:
            return
        engine = require_adapter_engine(self._engine)
        async with self._adapter_locks.setdefault(digest, asyncio.Lock()):
            if digest not in self._loaded_adapters:
                await engine.add_adapter(digest, path)
                self._loaded_adapters.add(digest)

    def _note_adapter(self, call: HostCall) -> None:
        """Notes that a call has added or removed an adapter."""
        if isinstance(call, AddAdapterCall):
            self._loaded_adapters.add(call.digest)
        elif isinstance(call, RemoveAdapterCall):
            self._loaded_adapters.discard(call.digest)

    async def _exit_if_dead(self, error: AntiphonError) -> None:
        """Ends the process soon if the engine's own process has died."""
        if not isinstance(error, EngineDied | EngineUnavailable):
            return
        try:
            await self.check_health()
        except (AntiphonError, TimeoutError) as problem:
            record("engine_lost", logging.ERROR, model=self._model, error=str(problem))
            asyncio.get_running_loop().call_later(EXIT_DELAY, os._exit, ENGINE_LOST)

    def _log_defect(self, defect: Exception) -> EngineError:
        """Logs a defect of the engine, and returns the error that the caller gets."""
        location = describe_exception(defect)
        record("engine_call_failed", logging.ERROR, problem=location)
        return EngineError("the engine failed at this request; the replica's log says why", cause=location)

    @staticmethod
    def _get_own_name() -> str:
        """Returns the name by which request routers know this replica."""
        from ray import serve

        name: str = serve.get_replica_context().replica_id.unique_id
        return name
