"""A token engine whose sequences run on the replicas of a Ray cluster.

`load` deploys the model as an application of Ray Serve and waits for its replicas; all other methods call the
replicas. Blocking calls run in a thread, so that the driver's event loop goes on. Ray never cancels a call by
itself, and a call waits for ever while there is no replica. So every call here ends with an explicit cancel,
and is refused at once while there is no replica. The callers own the deadlines.

A sequence whose replica dies raises EngineDied if the sequence had started, and EngineLost if it waited. The
pipeline tries a sequence with EngineLost once more.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import antiphon
from antiphon.domain.request import Constraint, EmbedRequest, Vectors
from antiphon.engines.base import (
    EngineInfo,
    LoadSpec,
    SequenceStarted,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.engines.host.frames import (
    AddAdapterCall,
    CheckCall,
    DoneReply,
    EmbedCall,
    EmbedReply,
    ErrorReply,
    EventReply,
    FinishedReply,
    GenerateCall,
    HostCall,
    InfoCall,
    InfoReply,
    RemoveAdapterCall,
    Reply,
    TokenizePiecesCall,
    TokensReply,
    VocabularyCall,
    VocabularyReply,
)
from antiphon.engines.host.ray.config import DeploymentSpec, DriverConfig, set_ray_environment
from antiphon.engines.host.ray.replica import (
    CALL_NUMBER,
    EngineReplica,
    decode_replica_reply,
    decode_reply,
    encode_call,
    encode_spec,
    find_load_error,
)
from antiphon.engines.host.ray.replica_table import (
    LoadSums,
    ReplicaTable,
    RoutingKey,
    build_prefix_keys,
    get_table,
    replace_load,
)
from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    EngineDied,
    EngineError,
    EngineLost,
    EngineUnavailable,
    LoadError,
)
from antiphon.telemetry.logs import record

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator


NAMESPACE = "antiphon"
DEPLOYMENT_PREFIX = "replica-"
"""The beginning of each deployment's name. The digest of the deployment's fields follows."""

APPLICATION_PREFIX = "antiphon-"
"""The beginning of each application's name. The model's name follows."""

PAUSE = 0.25
"""Seconds between two checks of an application that has no replica yet."""

WARNING_DELAY = 30.0
"""Seconds after which the log tells why there is no replica yet."""

RETRY_PAUSE = 3.0
"""Seconds between two attempts to deploy in a cluster that was there before."""

EXTRA_CALLS = 64
"""The most calls without tokens that one replica takes beside its sequences."""

HEALTH_PERIOD, HEALTH_TIMEOUT = 5.0, 30.0
"""Seconds between two health checks of a replica, and the seconds in which it must answer."""


class Deployment:
    """The application of one model."""

    def __init__(self, config: DriverConfig) -> None:
        """Makes the handles of a deployed application. Call it in the event loop that makes the calls. Once
        the handles exist, Ray Serve tells the request router which replicas run."""
        from ray import serve

        self.application = build_application_name(config.deployment.name)
        self._name = build_deployment_name(config.deployment)
        self._config = config
        handle = serve.get_deployment_handle(self._name, self.application)
        options = handle.options(
            _by_reference=False, request_serialization="msgpack", response_serialization="noop"
        )
        self.ask_handle: DeploymentHandle = options.options(method_name="ask")
        """Calls that make no token."""
        self.generate_handle: DeploymentHandle = options.options(method_name="generate", stream=True)
        """Calls that make tokens or vectors."""

    async def wait_for_replica(self, table: ReplicaTable) -> None:
        """Waits until the application has a running replica. If a replica cannot load, deletes the
        application and raises the replica's error, unless the driver's configuration has it wait."""
        is_logged, started_at = False, asyncio.get_running_loop().time()
        while not table.names:
            message = await asyncio.to_thread(self._read_messages)
            error = find_load_error(message)
            if error is not None and not self._config.waits:
                await asyncio.to_thread(self._delete)
                raise error
            if not is_logged and asyncio.get_running_loop().time() > started_at + WARNING_DELAY:
                is_logged = True
                record("no_replica_yet", logging.WARNING, model=self._config.deployment.name, reason=message)
            await asyncio.sleep(PAUSE)

    def _read_messages(self) -> str:
        """Returns Ray Serve's messages about the application."""
        from ray import serve

        application = serve.status().applications.get(self.application)
        if application is None:
            return "the application is not deployed"
        deployments = [
            deployment for name, deployment in application.deployments.items() if name == self._name
        ]
        return "\n".join([application.message, *(deployment.message for deployment in deployments)])

    def _delete(self) -> None:
        """Removes the application. Otherwise Ray Serve would restart its failing replicas for ever."""
        from ray import serve

        serve.delete(self.application)


async def open_deployment(config: DriverConfig) -> Deployment:
    """Connects to the cluster and deploys the model. Replicas of an equal deployment stay as they are. Raises
    LoadError if that fails, unless the driver's configuration has it wait."""
    set_ray_environment(config.cluster.token)
    while True:
        try:
            await asyncio.to_thread(_connect, config)
            await asyncio.to_thread(_deploy, config.deployment)
        except AntiphonError:
            raise
        except Exception as problem:  # noqa: BLE001 - Ray raises errors of any kind
            if not config.waits:
                raise LoadError(
                    f"the model {config.deployment.name} cannot be deployed in the cluster: "
                    f"{_get_first_line(problem)}"
                ) from None
            record("cluster_away", logging.WARNING, problem=_get_first_line(problem))
            await asyncio.sleep(RETRY_PAUSE)
        else:
            return Deployment(config)


def build_application_name(model: str) -> str:
    """Returns the name of a model's application."""
    return f"{APPLICATION_PREFIX}{model}"


def select_replica_fields(spec: DeploymentSpec) -> DeploymentSpec:
    """Returns the deployment with the fields that affect each single replica. The fields about the number of
    replicas have their defaults."""
    return DeploymentSpec(spec.name, spec.factory, spec.load, spec.placement, interpreter=spec.interpreter)


def build_deployment_name(spec: DeploymentSpec) -> str:
    """Returns the name of a deployment. A change of the model gives another name, and a change of the number
    of replicas does not."""
    content = encode_spec(select_replica_fields(spec)) + antiphon.__version__.encode()
    return DEPLOYMENT_PREFIX + blake2b(content, digest_size=6).hexdigest()


def _get_first_line(problem: Exception) -> str:
    """Returns the first line of an exception's message."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0][:300]


def _connect(config: DriverConfig) -> None:
    """Connects this process to the cluster as a driver, through the node of this machine. In a thread, Ray
    does not change the signal handlers."""
    import ray

    if not ray.is_initialized():
        ray.init(
            address=config.cluster.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
        )


def _deploy(spec: DeploymentSpec) -> None:
    """Makes Ray Serve run the replicas. Starts no HTTP proxy."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    serve.start(proxy_location="Disabled")
    encoded = encode_spec(select_replica_fields(spec))
    application = build_application_name(spec.name)
    options: dict[str, object] = {
        "name": build_deployment_name(spec),
        "max_ongoing_requests": spec.load.sequences + spec.load.queue + EXTRA_CALLS,
        "ray_actor_options": build_actor_options(spec),
        "graceful_shutdown_timeout_s": spec.drain_timeout,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": HEALTH_PERIOD,
        "health_check_timeout_s": HEALTH_TIMEOUT,
        "request_router_config": RequestRouterConfig(
            request_router_class="antiphon.engines.host.ray.request_router:AffinityRouter",
        ),
        **build_scaling(spec),
    }
    deployment = serve.deployment(**options)(EngineReplica)
    deployment._version = options["name"]  # noqa: SLF001 - otherwise each deploy restarts all replicas
    app = deployment.bind(spec.name, encoded)
    serve.run_many(
        [serve.RunTarget(app, name=application, route_prefix=None)],
        wait_for_ingress_deployment_creation=True,
        wait_for_applications_running=False,
    )


def build_actor_options(spec: DeploymentSpec) -> dict[str, object]:
    """Returns Ray's options for each replica: its resources and its interpreter."""
    options: dict[str, object] = {
        "num_cpus": spec.placement.cpus,
        "num_gpus": spec.placement.gpus,
        "resources": dict(spec.placement.custom_resources),
    }
    if spec.interpreter is not None:
        options["runtime_env"] = {"py_executable": spec.interpreter}
    return options


def build_scaling(spec: DeploymentSpec) -> dict[str, object]:
    """Returns Ray Serve's options for the number of replicas. Autoscaling counts running and waiting
    sequences."""
    if spec.max_replicas is None or spec.max_replicas == spec.replicas:
        return {"num_replicas": spec.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": spec.replicas,
            "max_replicas": spec.max_replicas,
            "initial_replicas": spec.replicas,
            "target_ongoing_requests": spec.load.sequences,
            "upscale_delay_s": spec.upscale_delay,
            "downscale_delay_s": spec.downscale_delay,
            "metrics_interval_s": max(0.1, min(5.0, spec.upscale_delay / 2)),
            "look_back_period_s": max(0.2, min(10.0, spec.upscale_delay)),
        }
    }


CALL_DEADLINE = 30.0
"""Seconds for the reply to a call that makes no token. Tokenizing the largest body takes about one second."""

INFO_DEADLINE = 1.0
"""Seconds in which replicas report their load. If a replica is late, its last report counts."""

RETRY_AFTER = 5.0
"""Retry delay in seconds while there is no replica. Ray Serve needs at least this long to start one."""

R = TypeVar("R", TokensReply, VocabularyReply, InfoReply, DoneReply)


class RayTokenEngine:
    """`TokenEngine` over all replicas of one model."""

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._name = config.deployment.name
        self._deployment: Deployment | None = None
        self.table = ReplicaTable()
        """The replicas, and the sequences on each."""
        self._info: EngineInfo | None = None
        self._sums = LoadSums()
        self._vocabulary: Vocabulary | None = None
        self._adapters: dict[str, str] = {}
        """The path of each adapter, by digest."""
        self._sequence_numbers = itertools.count()
        self._streams: dict[int, DeploymentResponseGenerator[bytes]] = {}
        self._open_calls: set[DeploymentResponse[bytes]] = set()
        """The open calls that make no token."""
        self._on_absence: Callable[[str], None] = lambda _: None

    # --- replicas -------------------------------------------------------------------------------------------

    def watch_absence(self, notify: Callable[[str], None]) -> None:
        """Calls `notify` now and at each change of the replicas: with a reason if there is no replica, and
        with an empty text if there is one."""
        self._on_absence = notify
        notify(self._describe_absence())

    def _describe_absence(self) -> str:
        """Returns why no call can be served; empty if calls can be served."""
        if self.table.names:
            return ""
        return f"no replica of {self._name} runs in the cluster; try again shortly"

    def _handle_replica_change(self) -> None:
        """Handles a change of the set of replicas. If none is left, cancels the calls that wait for a
        replica, because they would wait for ever."""
        names = self.table.names
        self._sums.set_replicas(names)
        record("replicas_changed", model=self._name, replicas=len(names))
        self._on_absence(self._describe_absence())
        if not names:
            for number, stream in tuple(self._streams.items()):
                if number not in self.table.assigned:
                    stream.cancel()
            for call in tuple(self._open_calls):
                call.cancel()

    def _require_deployment(self) -> Deployment:
        """Returns the deployment. Raises EngineUnavailable if the deployment has no replica."""
        if self._deployment is None or not self.table.names:
            raise EngineUnavailable(self._describe_absence(), retry_after=RETRY_AFTER)
        return self._deployment

    # --- calls ----------------------------------------------------------------------------------------------

    async def _ask(self, call: HostCall, reply_type: type[R]) -> R:
        """Sends a call that makes no token to one replica, and returns its reply."""
        response = self._require_deployment().ask_handle.remote(encode_call(call))
        self._open_calls.add(response)
        try:
            async with asyncio.timeout(CALL_DEADLINE):
                frame = await response
        except TimeoutError:
            raise DeadlineExceeded(
                f"the replica of {self._name} did not answer within {CALL_DEADLINE:g} s"
            ) from None
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises errors of any kind
            raise self._map_error(problem, is_started=False) from None
        finally:
            self._open_calls.discard(response)
            response.cancel()
        return self._require_reply(decode_replica_reply(frame).reply, reply_type)

    async def _ask_all(self, call: HostCall, seconds: float) -> list[tuple[str, Reply]]:
        """Sends a call to all replicas, and returns their replies, each with its replica. Returns an empty
        list if any replica is late, because Ray answers for all of them at once."""
        response = self._require_deployment().ask_handle.broadcast("ask", encode_call(call))
        try:
            async with asyncio.timeout(seconds):
                results = await response.results_async(return_exceptions=True)
        except TimeoutError:
            return []
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises errors of any kind
            raise self._map_error(problem, is_started=False) from None
        replica_replies = [
            decode_replica_reply(replica_reply)
            for replica_reply in results
            if isinstance(replica_reply, bytes)
        ]
        return [(replica_reply.replica, replica_reply.reply) for replica_reply in replica_replies]

    def _require_reply(self, reply: Reply, reply_type: type[R]) -> R:
        """Returns a reply of the expected type. Raises the error that it carries, or EngineError."""
        if isinstance(reply, ErrorReply):
            raise reply.value.to_exception()
        if not isinstance(reply, reply_type):
            raise self._build_protocol_error(reply)
        return reply

    def _build_protocol_error(self, reply: Reply) -> EngineError:
        """Builds the error of a call that got a reply of the wrong type."""
        return EngineError(f"a replica of {self._name} answered with {type(reply).__name__}")

    async def _stream(
        self, call: HostCall, key: RoutingKey, adapter: str = ""
    ) -> AsyncGenerator[Reply, None]:
        """Sends a call to the replica that its key prefers, and yields the replies. Closing the generator
        cancels the call. `adapter`: the path of the adapter that the call needs."""
        deployment, number = self._require_deployment(), next(self._sequence_numbers)
        self.table.open(number, key)
        stream = self._streams[number] = deployment.generate_handle.remote(encode_call(call, adapter), number)
        is_started = False
        try:
            while True:
                try:
                    frame = await anext(stream)
                except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises any kind
                    raise self._map_error(problem, is_started) from None
                reply = decode_reply(frame)
                if isinstance(reply, ErrorReply):
                    raise reply.value.to_exception()
                is_started = True
                yield reply
                if isinstance(reply, FinishedReply | DoneReply):
                    return
        finally:
            stream.cancel()
            del self._streams[number]
            self.table.close(number)

    def _map_error(self, problem: BaseException, is_started: bool) -> BaseException:
        """Maps an exception of Ray to the caller's error. Every such exception means that the replica is
        gone. Returns a cancellation of this task unchanged."""
        task = asyncio.current_task()
        if isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling():
            return problem
        cause = f"{type(problem).__name__}: {problem}"
        record("replica_lost", logging.WARNING, model=self._name, started=is_started, problem=cause[:200])
        if is_started:
            return EngineDied(
                f"the replica of {self._name} ended while it was generating this answer; try again",
                retry_after=RETRY_AFTER,
                cause=cause,
            )
        return EngineLost(
            f"the replica of {self._name} ended while this request waited for it; try again",
            retry_after=RETRY_AFTER,
            cause=cause,
        )

    # --- the interface --------------------------------------------------------------------------------------

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Deploys the model, and waits for its first replica. Raises a StartupError."""
        self.table = get_table(build_application_name(self._name))
        self.table.max_sequences = spec.sequences
        self.table.on_change = self._handle_replica_change
        self._deployment = deployment = await open_deployment(self._config)
        while True:
            await deployment.wait_for_replica(self.table)
            with suppress(EngineUnavailable):  # the replica ended again; the next wait raises its reason
                self._info = (await self._ask(InfoCall(CALL_NUMBER), InfoReply)).value
                return self._info

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        return (await self._ask(TokenizePiecesCall(CALL_NUMBER, tuple(pieces), add_bos), TokensReply)).value

    async def vocabulary(self) -> Vocabulary:
        """Returns the table of token ids, which is the same in all replicas."""
        if self._vocabulary is None:
            self._vocabulary = (await self._ask(VocabularyCall(CALL_NUMBER), VocabularyReply)).value
        return self._vocabulary

    async def info(self) -> EngineInfo:
        """Returns the model's facts, and the load of all replicas together. If a replica does not
        answer in time, the last report of each replica counts."""
        if self._info is None:
            raise EngineUnavailable(self._describe_absence(), retry_after=RETRY_AFTER)
        with suppress(AntiphonError):
            for replica, reply in await self._ask_all(InfoCall(CALL_NUMBER), INFO_DEADLINE):
                if isinstance(reply, InfoReply):
                    self._sums.note(replica, reply.value.load)
        return replace_load(self._info, self._sums.sum(), max(1, len(self.table.names)))

    async def check(self, constraint: Constraint) -> None:
        await self._ask(CheckCall(CALL_NUMBER, constraint), DoneReply)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes the adapter at `path` usable; every machine must have the file there. A replica that starts
        later loads the adapter when a sequence needs it."""
        call = AddAdapterCall(CALL_NUMBER, digest, path)
        replies = await self._ask_all(call, CALL_DEADLINE)
        if not replies:
            await self._ask(call, DoneReply)
        for _, reply in replies:
            self._require_reply(reply, DoneReply)
        self._adapters[digest] = path

    async def remove_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)
        with suppress(EngineUnavailable):
            await self._ask_all(RemoveAdapterCall(CALL_NUMBER, digest), CALL_DEADLINE)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        path = self._adapters.get(request.adapter, "") if request.adapter else ""
        stream = self._stream(GenerateCall(CALL_NUMBER, request), build_routing_key(request), path)
        try:
            async for reply in stream:
                if not isinstance(reply, EventReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
        finally:
            await stream.aclose()

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        stream = self._stream(EmbedCall(CALL_NUMBER, request), RoutingKey())
        try:
            async for reply in stream:
                if isinstance(reply, DoneReply):
                    return
                if not isinstance(reply, EmbedReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        """Cancels every sequence. The replicas stay, for other servers of the cluster."""
        for stream in tuple(self._streams.values()):
            stream.cancel()


def build_routing_key(request: TokenRequest) -> RoutingKey:
    """Builds the routing key of a sequence. A scored prompt has no prefix keys, since it is always
    computed."""
    adapter = request.adapter or ""
    group = f"group {request.actor} {request.group}".encode() if request.group else b""
    if request.prompt_logprobs is not None:
        return RoutingKey((), adapter, group)
    tokens = [token for segment in request.segments for token in segment.tokens]
    return RoutingKey(build_prefix_keys(tokens, adapter, request.cache_salt), adapter, group)
