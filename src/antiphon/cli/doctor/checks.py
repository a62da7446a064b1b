"""Checks of `antiphon doctor`. Each check reports one finding and raises no error for a problem.

Another process (`probe`) runs native code, with the interpreter and the environment of engine hosts. Checks
leave no files behind. The memory and the port of the running server of this home directory count as
available.
"""

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from antiphon.auth.secrets import PEPPER_FILE, load_pepper, parse_pepper
from antiphon.cli.admin_client import ADMIN_FILE
from antiphon.cli.bootstrap import (
    MARK_NAME,
    describe_foreign_key,
    find_spool,
    find_store_url,
    resolve_group_projects,
)
from antiphon.cli.commands.serve import describe_capacity, size_model
from antiphon.cli.doctor.findings import (
    Finding,
    FindingSeverity,
    ProbeInput,
    report_ok,
    report_problem,
    to_finding,
)
from antiphon.cli.local_servers import list_running_servers, parse_pid
from antiphon.cli.model_files import (
    assign_adapters,
    check_and_store_adapter,
    find_fetched_model,
    find_fetched_path,
    require_directory,
)
from antiphon.cli.output import CallFailed
from antiphon.cli.serve_options import CANTOR, ServeOptions, find_home
from antiphon.cli.vllm_models import estimate_vllm_memory
from antiphon.domain.context import SystemClock
from antiphon.domain.tenancy import KeyKind, Project
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.host.confine import find_other_user
from antiphon.engines.host.runtime import create_runtime_directory
from antiphon.errors import (
    AddressUnavailable,
    AntiphonError,
    IssuerUnavailable,
    KnowledgeUnavailable,
    LimitsUnavailable,
    LoadError,
    ModelFileError,
    SettingsError,
    StoreRefused,
    StoreUnavailable,
    explain_extra,
)
from antiphon.processes.engine_hosts import filter_host_environment
from antiphon.processes.ipc import to_line
from antiphon.processes.supervisor import bind
from antiphon.settings.loading import build_model
from antiphon.settings.models import AdapterSettings, ModelSettings
from antiphon.settings.schema import Settings, choose_interpreter, replace_models
from antiphon.settings.server import ServerSettings
from antiphon.settings.tenancy import LimitsSettings, OidcSettings
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy
from antiphon.weights.gguf import read_header
from antiphon.weights.hub.cache import find_cache
from antiphon.weights.hub.reference import is_reference
from antiphon.weights.kv_cache_size import (
    compute_cell_bytes,
    compute_text_token_bytes,
    measure_available_memory,
)
from antiphon.weights.wheel_model import WHEEL_MODELS, find_wheel_model, get_wheel_model

HEALTH_TIMEOUT = 1.0
"""Seconds for a response from the server on the port."""

GIGABYTE = 1e9

PROBE_TIMEOUT = 300.0
"""Seconds for the probe. Opening the library takes 0.1 s, but loading a large model takes minutes."""

ERROR_CHARACTERS = 300
"""Displayed characters of the probe's last output."""

MEGABYTE = 1e6

ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4wSUHAAKOAPGpWvKOAAAAAElFTkSuQmCC"
"""A PNG of one pixel, in base64."""

REMOTE_TIMEOUT_S = 2
"""Seconds for an answer from a remote database or Redis."""


class OwnServer(Struct, frozen=True):
    """A running server that uses this home directory."""

    pid: int
    url: str

    def measure_memory(self) -> int:
        """Returns the bytes of memory that become free when the server ends: without files and shared
        memory."""
        import psutil

        total = 0
        try:
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                memory = member.memory_info()
                total += memory.rss - getattr(memory, "shared", 0)
        except psutil.Error:
            return total
        return total


def find_own_server(server: ServerSettings) -> OwnServer | None:
    """Returns the server of this home directory on the configured port; None without one."""
    for path, running in list_running_servers(find_home(os.environ, Path.home())).items():
        if urlsplit(running.url).port == server.port:
            return OwnServer(parse_pid(path), running.url)
    return None


class SizedModel(Struct, frozen=True):
    """A model with an existing file, and the memory that it needs."""

    model: ModelSettings
    bytes: int


def check_settings(serve_options: ServeOptions) -> tuple[Settings, Finding]:
    """Returns the settings and a finding about them. If they are invalid, returns the default settings."""
    try:
        settings = serve_options.load_settings()
    except SettingsError as error:
        return replace_models(Settings(), [build_model(CANTOR)]), to_finding("settings-invalid", error)
    file = serve_options.find_file()
    return settings, report_ok(
        "settings", f"{file} and the environment" if file else "the environment; no file"
    )


def check_models(settings: Settings) -> tuple[list[SizedModel], list[Finding]]:
    """Checks each model's file, and the memory of all models together."""
    sized_models: list[SizedModel] = []
    findings: list[Finding] = []
    for model in settings.models:
        try:
            local_model = find_fetched_model(model, settings.hub)
            if local_model is None:
                message = f"{model.path} is not fetched yet"
                if find_fetched_path(model.path, settings.hub):
                    message = f"the projector of {model.path} is not fetched yet"
                findings.append(report_problem("model-not-fetched", message, FindingSeverity.ADVICE))
                continue
            sized = _size_model(local_model)
        except LoadError as error:
            findings.append(to_finding("memory-short", error))
        except SettingsError as error:
            findings.append(to_finding("settings-invalid", error))
        except AntiphonError as error:
            findings.append(to_finding("model-invalid", error))
        except OSError as error:
            findings.append(report_problem("model-invalid", f"cannot read {model.path}: {error.strerror}"))
        else:
            sized_models.append(sized)
            capacity, size = describe_capacity(sized.model), f"{sized.bytes / GIGABYTE:.2f} GB"
            findings.append(
                report_ok("model", f"{sized.model.name}, {sized.model.path}: {capacity} in {size}")
            )
    return sized_models, findings + check_memory(sized_models, find_own_server(settings.server))


def _size_model(model: ModelSettings) -> SizedModel:
    """Returns the model with the memory that its weights and its context need."""
    sized = size_model(model)
    if sized.engine == "vllm":
        return SizedModel(sized, estimate_vllm_memory(sized) * sized.hosts)
    header = read_header(Path(sized.path))
    if header.embeds:
        context = (sized.context_length or 0) * compute_text_token_bytes(header)
    else:
        cells = sized.cells or (sized.context_length or 0) * sized.sequences
        context = cells * compute_cell_bytes(header, sized.kv_type)
    return SizedModel(sized, (header.size + context) * sized.hosts)


def check_memory(models: list[SizedModel], own_server: OwnServer | None = None) -> list[Finding]:
    """Compares the weights and KV caches of all models with the free memory.

    The memory of a running server of this home directory counts as free.
    """
    if not models:
        return []
    server_bytes = own_server.measure_memory() if own_server else 0
    needed_bytes, free_bytes = sum(sized.bytes for sized in models), measure_free_memory() + server_bytes
    message = f"weights and context need {needed_bytes / GIGABYTE:.2f} GB; "
    message += f"{free_bytes / GIGABYTE:.2f} GB are available"
    message += f", {server_bytes / GIGABYTE:.2f} of them used by the running server" if server_bytes else ""
    return [
        report_problem("memory-short", message) if needed_bytes > free_bytes else report_ok("memory", message)
    ]


def measure_free_memory() -> int:
    """Returns the bytes that a process of this user can allocate now."""
    process_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    available = measure_available_memory()
    return available if process_limit == resource.RLIM_INFINITY else min(available, process_limit)


def check_media(settings: Settings, is_installed: bool | None = None) -> Iterator[Finding]:
    """Decodes a picture, if a model takes images. `is_installed`: whether the extra `media` is; None looks.
    The probe finds out whether the projector fits the model."""
    from antiphon.media.decoder import has_extra

    names = [model.name for model in settings.models if model.mmproj is not None]
    if not names:
        return
    if not (has_extra() if is_installed is None else is_installed):
        message = f"{', '.join(names)} can take images, and what decodes them is not installed"
        yield report_problem("media-missing", message)
        return
    try:
        asyncio.run(_decode_picture())
    except AntiphonError as error:
        yield report_problem("media-unusable", error.cause or error.message)
    else:
        yield report_ok("media", f"{', '.join(names)} can take images; a process of its own decoded one")


async def _decode_picture() -> None:
    """Decodes a picture as a server does. Raises an AntiphonError."""
    from antiphon.media.decoder import MediaDecoder, MediaFile

    decoder = MediaDecoder()
    try:
        await decoder.decode_image(MediaFile("the picture", ONE_PIXEL), "doctor", SystemClock())
    finally:
        await decoder.aclose()


def check_adapters(settings: Settings, models: list[SizedModel]) -> Iterator[Finding]:
    """Checks the directories that callers may load from, and each configured adapter with its model."""
    paths = {sized.model.name: sized.model.path for sized in models}
    for directory in settings.lora.directories:
        try:
            yield report_ok("adapters", f"callers may load from {require_directory(directory)}")
        except SettingsError as error:
            yield to_finding("settings-invalid", error)
    if len(models) == len(settings.models):  # check_models reports a missing model
        try:
            settings = assign_adapters(replace_models(settings, [sized.model for sized in models]))
        except SettingsError as error:
            yield to_finding("settings-invalid", error)
            return
    for adapter in settings.adapters:
        if base := paths.get(adapter.model or ""):  # check_models reports a problem with the model
            yield _check_adapter(adapter, base)


def _check_adapter(adapter: AdapterSettings, base_path: str) -> Finding:
    """Checks one adapter with its base model. Writes only to a temporary directory."""
    with TemporaryDirectory(prefix="antiphon-doctor-") as directory:
        try:
            adapter_file = check_and_store_adapter(adapter, base_path, Path(directory))
        except ModelFileError as error:
            return to_finding("adapter-invalid", error)
        return report_ok(
            "adapter", f"{adapter.name}, {adapter.path}: rank {adapter_file.rank}, for {adapter.model}"
        )


def check_port(server: ServerSettings) -> Finding:
    """Checks the port by listening on it for a moment."""
    try:
        bind(server.host, server.port).close()
    except AddressUnavailable as error:
        if " is taken" not in error.message:
            return to_finding("address-unavailable", error)
        if (own_server := find_own_server(server)) is not None:
            return report_ok("port", f"your server listens on {own_server.url} (process {own_server.pid})")
        if _is_antiphon(server):
            message = f"another Antiphon already uses port {server.port} of {server.host}"
            return report_problem("port-taken", message, FindingSeverity.ADVICE)
        return report_problem("port-taken", f"port {server.port} of {server.host} is taken")
    port_text = f"port {server.port}" if server.port else "some port"
    return report_ok("port", f"{port_text} of {server.host} is free")


def _is_antiphon(server: ServerSettings) -> bool:
    """Whether the server on the port is an Antiphon: its path /health returns what Antiphon's returns."""
    from antiphon.cli.client import Client

    try:
        health = Client(f"http://{server.host}:{server.port}", read_timeout=HEALTH_TIMEOUT).call(
            "GET", "/health"
        )
    except CallFailed:
        return False
    return isinstance(health, dict) and health.get("status") == "ok"


def check_cache(settings: Settings) -> Finding:
    """Checks that the cache of fetched models is readable and writable. A problem is only advice if the
    configured models do not need what is missing."""
    cache = find_cache(settings.hub.cache)
    path = next(path for path in (cache.root, *cache.root.parents) if os.path.lexists(path))
    fetched_models = [
        model for model in settings.models if is_reference(model.path) or get_wheel_model(model.path)
    ]
    read_severity = FindingSeverity.BROKEN if fetched_models else FindingSeverity.ADVICE
    try:
        os.listdir(path)
        count = len(cache.list_files())
        count += sum(find_wheel_model(model, cache.root) is not None for model in WHEEL_MODELS.values())
        has_missing_model = any(
            find_fetched_path(model.path, settings.hub) is None for model in fetched_models
        )
    except OSError as problem:
        message = f"cannot read the model cache {path}: {problem.strerror}"
        return report_problem("cache-unusable", message, read_severity)
    except AntiphonError as error:
        return replace(to_finding("cache-unusable", error), severity=read_severity)
    if not os.access(path, os.W_OK | os.X_OK):
        write_severity = FindingSeverity.BROKEN if has_missing_model else FindingSeverity.ADVICE
        return report_problem("cache-unusable", f"cannot write to the model cache {path}", write_severity)
    return report_ok(
        "cache", f"{cache.root}: {count} fetched, {cache.count_free_bytes() / GIGABYTE:.0f} GB free"
    )


def check_confinement(settings: Settings) -> Finding:
    """Reports the confinement of engine hosts and the user that runs them."""
    user = settings.engine.user
    try:
        account = find_other_user(user) if user else None
    except SettingsError as error:
        return to_finding("engine-user-unusable", error)
    if account is None and os.geteuid() == 0:
        return report_problem("engine-as-root", "engines run with the rights of root", FindingSeverity.ADVICE)
    user_text = f"engines run as {account.pw_name if account else 'the user of the server'}, with limits"
    if sys.platform != "linux":
        return report_problem(
            "confinement-partial", f"{user_text}, and may gain privileges", FindingSeverity.ADVICE
        )
    return report_ok("confinement", f"{user_text} and without new privileges")


def check_sockets() -> Iterator[Finding]:
    """Checks the directory for a server's sockets."""
    try:
        with create_runtime_directory() as directory:
            yield report_ok("sockets", str(directory.parent))
    except SettingsError as error:
        yield to_finding("no-socket-place", error)
    except OSError as problem:
        yield report_problem("no-socket-place", f"cannot make a directory for sockets: {problem.strerror}")


def check_engine(settings: Settings, models: Sequence[LoadSpec]) -> Iterator[Finding]:
    """Runs the probe and yields its findings. `models`: the models to load."""
    python, engine = choose_interpreter(settings), settings.engine
    probe_input = ProbeInput(
        library=engine.library,
        threads=tuple(model.threads for model in settings.models),
        gpu_layers=tuple(model.gpu_layers for model in settings.models if isinstance(model.gpu_layers, int)),
        models=tuple(models),
    )
    try:
        process = subprocess.run(
            [python, "-P", "-m", "antiphon.cli.doctor.probe"],
            input=to_line(probe_input),
            env=filter_host_environment(os.environ, engine.wait_policy),
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
        output = process.stdout
        end_reason = "" if process.returncode == 0 else describe_end(process.returncode)
        error_text = process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:ERROR_CHARACTERS]
    except subprocess.TimeoutExpired as expired:
        output, end_reason, error_text = expired.stdout or b"", f"no answer within {PROBE_TIMEOUT:.0f} s", ""
    except OSError as problem:
        output, end_reason, error_text = b"", f"it does not run: {problem}", ""
    yield from parse_probe_output(output, end_reason, error_text)


def parse_probe_output(output: bytes, end_reason: str, error_text: str) -> Iterator[Finding]:
    """Yields the probe's findings, and one more if the probe failed. Ignores lines that a library prints.

    `end_reason`: why the probe failed; empty if it succeeded. `error_text`: its last line on standard error.
    """
    last_step, has_finding = {"step": "", "what": ""}, False
    for line in output.splitlines():
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict) and "step" in parsed:
            last_step = parsed
        elif isinstance(parsed, dict) and "severity" in parsed:
            has_finding = True
            yield Finding(**{**parsed, "severity": FindingSeverity(parsed["severity"])})
    if not has_finding:
        reason = f"the engine's Python cannot run Antiphon ({end_reason or 'it printed no finding'})"
        yield report_problem("interpreter-unusable", f"{reason}: {error_text}" if error_text else reason)
    elif end_reason and last_step["step"] == "loading":
        yield report_problem("model-not-loadable", f"loading {last_step['what']} ends with {end_reason}")
    elif end_reason:
        yield report_problem(
            "library-crashes", f"opening the library of {last_step['what']} ends with {end_reason}"
        )


def describe_end(exit_code: int) -> str:
    """Describes a process's exit status in words. A negative status is the signal that ended the process."""
    return f"status {exit_code}" if exit_code >= 0 else f"signal {signal.Signals(-exit_code).name}"


def check_tenancy(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Iterator[Finding]:
    """Checks the database, the pepper, the spool, the limits and single sign-on."""
    home = find_home(environ, user_home)
    try:
        with closing(
            Database(find_store_url(settings.keys.store, home), connect_s=REMOTE_TIMEOUT_S)
        ) as database:
            yield from _check_store(database, settings, home)
    except (StoreRefused, StoreUnavailable) as error:
        yield to_finding("store-unusable", error)
    yield _check_spool(Path(find_spool(settings.ledger.spool, home)), settings.ledger.spool_bytes)
    if settings.limits.url is not None:
        yield _check_limits(settings.limits, settings.limits.url)
    if settings.oidc.issuer is not None:
        yield _check_issuer(settings.oidc, settings.oidc.issuer)


def _check_store(database: Database, settings: Settings, home: Path) -> Iterator[Finding]:
    """Checks that the database answers, has this version's tables and matches the pepper."""
    file = database.file
    if file is not None and not file.exists():
        path = _find_existing_path(file.parent)
        if not _is_writable(path):
            yield report_problem(
                "store-unusable", f"the database {file} cannot be created: {path} is not writable"
            )
        else:
            yield report_ok("store", f"{file} does not exist yet; the first start creates it")
            yield from _check_operator_file(home, has_operator_keys=False)
            yield from _check_group_projects(settings, ())
        return
    state = database.read_schema_state()
    if state.is_newer:
        yield report_problem("store-newer", f"a later version of Antiphon created {database.display_url}")
    elif state.found_revision is None:
        yield report_ok("store", f"{database.display_url} is empty; the first start creates its tables")
        yield from _check_operator_file(home, has_operator_keys=False)
    elif state.pending:
        message = (
            f"{database.display_url} has revision {state.found_revision}, "
            f"but this version needs {state.needed_revision}"
        )
        yield report_problem("store-outdated", message)
    else:
        yield report_ok("store", f"{database.display_url} answers, at revision {state.found_revision}")
        yield _check_pepper(database, settings, home)
        directory = SqlTenancy(database).load_directory()
        has_operator_keys = any(stored_key.key.kind is KeyKind.ADMIN for stored_key in directory.keys)
        yield from _check_operator_file(home, has_operator_keys)
        yield from _check_group_projects(settings, directory.projects)
    if database.file is None and settings.knowledge.storage != "files":
        yield _check_knowledge(database, settings)


def _check_operator_file(home: Path, has_operator_keys: bool) -> Iterator[Finding]:
    """Reports an operator's file that belongs to another database.

    `has_operator_keys`: whether the database has an operator's key. Without one, the start creates a key, and
    does not overwrite the file.
    """
    path = home / ADMIN_FILE
    if not has_operator_keys and os.access(path, os.F_OK):
        yield report_problem("operator-key-foreign", describe_foreign_key(path))


def _check_knowledge(database: Database, settings: Settings) -> Finding:
    """Checks that PostgreSQL can store knowledge tables. Creates their schema and rolls it back."""
    from antiphon.retrieval.postgres.database import KnowledgeDatabase
    from antiphon.retrieval.postgres.schema import prepare_schema

    try:
        pgvector = KnowledgeDatabase(database).read(prepare_schema)
    except KnowledgeUnavailable as error:
        finding = to_finding("knowledge-unusable", error, ": ")
        # The server works without knowledge tables, unless the settings require the database.
        is_required = settings.knowledge.storage == "database"
        return finding if is_required else replace(finding, severity=FindingSeverity.ADVICE)
    version = ".".join(map(str, pgvector.version))
    return report_ok(
        "knowledge", f"{database.display_url} can store knowledge tables, with pgvector {version}"
    )


def _check_pepper(database: Database, settings: Settings, home: Path) -> Finding:
    """Checks that the local pepper matches the database's keys."""
    mark, configured = SqlTenancy(database).load_mark(MARK_NAME), settings.keys.pepper
    source = "ANTIPHON_PEPPER" if configured else str(home / PEPPER_FILE)
    if mark is None and not configured and not (home / PEPPER_FILE).exists():
        return report_ok("pepper", f"{source} does not exist yet; the first start creates it")
    try:
        pepper = parse_pepper(configured) if configured else load_pepper(home, create=False)
    except StoreRefused as error:
        return to_finding("pepper-unusable", error)
    if mark not in (None, pepper.mark):
        return report_problem("pepper-unusable", f"{source} does not match the keys of this database")
    return report_ok("pepper", f"{source} matches the keys of the database")


def _check_spool(spool: Path, limit_bytes: int) -> Finding:
    """Checks the spool: the directory that stores usage until the database has it."""
    path = _find_existing_path(spool)
    if not path.is_dir() or not _is_writable(path):
        return report_problem(
            "spool-unusable", f"the ledger's spool {spool} cannot be written: {path} is not writable"
        )
    free_bytes = shutil.disk_usage(path).free
    message = (
        f"{spool}: {free_bytes / MEGABYTE:,.0f} MB free; the spool may use {limit_bytes / MEGABYTE:,.0f}"
    )
    return (
        report_problem("spool-short", message, FindingSeverity.ADVICE)
        if free_bytes < limit_bytes
        else report_ok("spool", message)
    )


def _check_limits(limits: LimitsSettings, url: str) -> Finding:
    """Checks that Redis, which counts limits for several servers, answers."""
    try:
        from antiphon.limits.redis import check_redis
    except ModuleNotFoundError:
        error = SettingsError(f"limits.url needs the Redis client; install it: {explain_extra('redis')}")
        return to_finding("limits-unusable", error)
    try:
        return report_ok("limits", check_redis(url, REMOTE_TIMEOUT_S))
    except SettingsError as error:
        return to_finding("limits-unusable", error)
    except LimitsUnavailable as error:
        fails_open = limits.unavailable == "open"  # each process then counts alone
        return report_problem(
            "limits-unusable", error.message, FindingSeverity.ADVICE if fails_open else FindingSeverity.BROKEN
        )


def _check_issuer(oidc: OidcSettings, issuer: str) -> Finding:
    """Checks that the issuer of single sign-on answers, and has a key for one of the algorithms."""
    if find_spec("jwt") is None:
        return report_problem("sign-on-unusable", "single sign-on needs a library that is not installed")
    from antiphon.auth.signing_keys import SigningKeys, fetch

    try:
        algorithms = asyncio.run(SigningKeys(issuer, oidc.keys_url, fetch, time.monotonic).load())
    except IssuerUnavailable as error:
        return report_problem("issuer-unusable", f"{issuer}: {error.message}")
    usable = [algorithm for algorithm in algorithms if algorithm in oidc.algorithms]
    if not usable:
        return report_problem(
            "issuer-unusable",
            f"{issuer} has no key for oidc.algorithms ({', '.join(oidc.algorithms)}): its keys are for "
            f"{', '.join(sorted(set(algorithms))) or 'nothing'}",
        )
    return report_ok("sign-on", f"{issuer} answers, and has keys for {', '.join(sorted(set(usable)))}")


def _check_group_projects(settings: Settings, projects: Sequence[Project]) -> Iterator[Finding]:
    """Reports a rule of `oidc.groups` whose project is unknown."""
    try:
        resolve_group_projects(settings, projects)
    except SettingsError as error:
        yield to_finding("sign-on-project-unknown", error)


def _find_existing_path(path: Path) -> Path:
    """Returns the path, or its nearest existing parent."""
    return next(candidate for candidate in (path, *path.parents) if os.path.lexists(candidate))


def _is_writable(path: Path) -> bool:
    """Whether this process can create files in the directory."""
    return os.access(path, os.W_OK | os.X_OK)
