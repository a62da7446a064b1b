"""Deploys a model as an application of Ray Serve, and waits for its replicas. Blocking calls run in a
thread, so that the driver's event loop goes on.
"""

import asyncio
import logging
from hashlib import blake2b
from typing import TYPE_CHECKING

import antiphon
from antiphon.engines.host.ray.config import DeploymentSpec, DriverConfig, set_ray_environment
from antiphon.engines.host.ray.replica import (
    EngineReplica,
    encode_spec,
    find_load_error,
)
from antiphon.engines.host.ray.replica_table import ReplicaTable
from antiphon.errors import (
    AntiphonError,
    LoadError,
)
from antiphon.telemetry.logs import record

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


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
