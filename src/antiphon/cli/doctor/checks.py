"""Checks of `antiphon doctor`. Each checks one thing and reports its finding.

Native code runs in another process (`probe`), with the interpreter and the environment of engine hosts. A
check neither raises an error for a problem that it finds, nor leaves a file behind.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.auth.secrets import PEPPER_FILE, load_pepper, parse_pepper
from antiphon.cli.bootstrap import MARK, find_spool, find_store_url
from antiphon.cli.commands.serve import size_model
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.cli.doctor.own_server import OwnServer, find_own_server
from antiphon.cli.model_files import (
    assign_adapters,
    check_adapter,
    find_cache,
    find_fetched,
    require_directory,
)
from antiphon.cli.output import CallFailed
from antiphon.cli.panel import describe_room
from antiphon.cli.serve_options import DEMO_MODEL, ServeOptions, find_home
from antiphon.cli.vllm_models import estimate_vllm_memory
from antiphon.engines.base import LoadSpec
from antiphon.engines.host.confine import find_other_user
from antiphon.engines.host.runtime import create_runtime_directory
from antiphon.errors import (
    AddressUnavailable,
    AntiphonError,
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
from antiphon.processes.supervisor import bind
from antiphon.settings.loading import build_model
from antiphon.settings.models import AdapterSettings, ModelSettings
from antiphon.settings.schema import Settings, change_model, choose_interpreter, replace_models
from antiphon.settings.server import ServerSettings
from antiphon.settings.tenancy import LimitsSettings
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy
from antiphon.weights.gguf import read_header
from antiphon.weights.kv_cache_size import (
    compute_cell_bytes,
    compute_text_token_bytes,
    measure_available_memory,
)

QUICK = 1.0
"""Seconds in which the process that uses the port must answer."""

GIGABYTE = 1e9

DEADLINE = 300.0
"""Seconds for the probe. Opening the library takes 0.1, loading a large model minutes."""

SHOWN_ERROR = 300
"""Characters of the probe's last output that are shown."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A model whose file exists, with the memory that it needs."""

    model: ModelSettings
    bytes: int


def check_settings(serve_options: ServeOptions) -> tuple[Settings, Finding]:
    """Returns the settings with their finding; the default settings where they are broken."""
    try:
        settings = serve_options.load_settings()
    except SettingsError as error:
        return replace_models(Settings(), [build_model(DEMO_MODEL)]), to_finding("settings-invalid", error)
    file = serve_options.find_file()
    return settings, report_ok(
        "settings", f"{file} and the environment" if file else "the environment; no file"
    )


def check_models(settings: Settings) -> tuple[list[Sized], list[Finding]]:
    """Checks each model's file, and the memory of all models together."""
    here: list[Sized] = []
    findings: list[Finding] = []
    for each in settings.models:
        try:
            resolved = _resolve_local(each, settings)
            if resolved is None:
                findings.append(
                    report_problem(
                        "model-not-fetched", f"{each.path} is not here yet", FindingSeverity.ADVICE
                    )
                )
                continue
            sized = _size_model(resolved)
        except LoadError as error:
            findings.append(to_finding("memory-short", error))
        except SettingsError as error:
            findings.append(to_finding("settings-invalid", error))
        except (AntiphonError, OSError) as error:
            findings.append(_report_bad_model(each, error))
        else:
            here.append(sized)
            findings.append(report_ok("model", _describe(sized)))
    return here, findings + check_memory(here, find_own_server(settings.server))


def _resolve_local(each: ModelSettings, settings: Settings) -> ModelSettings | None:
    """Returns the model with the local path of its file; None if the file was never fetched."""
    path = find_fetched(each.path, settings.hub)
    return change_model(each, path=path) if path else None


def _size_model(each: ModelSettings) -> Sized:
    """Returns the model with the memory that its weights and its context need."""
    sized = size_model(each)
    if sized.engine == "vllm":
        return Sized(sized, estimate_vllm_memory(sized) * sized.hosts)
    header = read_header(Path(sized.path))
    if header.embeds:
        context = (sized.context_length or 0) * compute_text_token_bytes(header)
    else:
        cells = sized.cells or (sized.context_length or 0) * sized.sequences
        context = cells * compute_cell_bytes(header, sized.kv_type)
    return Sized(sized, (header.size + context) * sized.hosts)


def _report_bad_model(each: ModelSettings, error: AntiphonError | OSError) -> Finding:
    """Makes the finding for a model whose file cannot be used."""
    if isinstance(error, AntiphonError):
        return to_finding("model-invalid", error)
    return report_problem("model-invalid", f"cannot read {each.path}: {error.strerror}")


def _describe(sized: Sized) -> str:
    """Describes a model and its memory in words."""
    model = sized.model
    return f"{model.name}, {model.path}: {describe_room(model)} in {sized.bytes / GIGABYTE:.2f} GB"


def check_memory(models: list[Sized], own: OwnServer | None = None) -> list[Finding]:
    """Compares weights and KV caches of all models with the free memory. The memory of a running server of
    this home counts as free."""
    if not models:
        return []
    held = own.measure_memory() if own else 0
    needed, room = sum(sized.bytes for sized in models), measure_free_memory() + held
    message = f"weights and context need {needed / GIGABYTE:.2f} GB; {room / GIGABYTE:.2f} GB can be had"
    message += f", {held / GIGABYTE:.2f} of them in the running server" if held else ""
    return [report_problem("memory-short", message) if needed > room else report_ok("memory", message)]


def measure_free_memory() -> int:
    """Returns the bytes that a process of this user can allocate now."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    room = measure_available_memory()
    return room if limit == resource.RLIM_INFINITY else min(room, limit)


def check_adapters(settings: Settings, models: list[Sized]) -> Iterator[Finding]:
    """Checks the directories that callers may load from, and each adapter of the settings with its model."""
    paths = {sized.model.name: sized.model.path for sized in models}
    for directory in settings.lora.directories:
        try:
            yield report_ok("adapters", f"callers may load from {require_directory(directory)}")
        except SettingsError as error:
            yield to_finding("settings-invalid", error)
    if len(models) == len(settings.models):  # a missing model is already reported
        try:
            settings = assign_adapters(replace_models(settings, [sized.model for sized in models]))
        except SettingsError as error:
            yield to_finding("settings-invalid", error)
            return
    for adapter in settings.adapters:
        if base := paths.get(adapter.model or ""):  # a problem with the model is already reported
            yield _check_adapter(adapter, base)


def _check_adapter(adapter: AdapterSettings, base: str) -> Finding:
    """Checks one adapter with its model, in a temporary directory."""
    with TemporaryDirectory(prefix="antiphon-doctor-") as directory:
        try:
            checked = check_adapter(adapter, base, Path(directory))
        except ModelFileError as error:
            return to_finding("adapter-invalid", error)
        return report_ok(
            "adapter", f"{adapter.name}, {adapter.path}: rank {checked.rank}, for {adapter.model}"
        )


def check_port(server: ServerSettings) -> Finding:
    """Listens on the port for a moment."""
    try:
        bind(server.host, server.port).close()
    except AddressUnavailable as error:
        if " is taken" not in error.message:
            return to_finding("address-unavailable", error)
        if (own := find_own_server(server)) is not None:
            return report_ok("port", f"your server listens on {own.url} (process {own.pid})")
        if _is_antiphon(server):
            message = f"another Antiphon runs already on port {server.port} of {server.host}"
            return report_problem("port-taken", message, FindingSeverity.ADVICE)
        return report_problem("port-taken", f"port {server.port} of {server.host} is taken")
    which = f"port {server.port}" if server.port else "some port"
    return report_ok("port", f"{which} of {server.host} is free")


def _is_antiphon(server: ServerSettings) -> bool:
    """Whether the listener answers like Antiphon's health page."""
    from antiphon.cli.client import Client

    try:
        answer = Client(f"http://{server.host}:{server.port}", patience=QUICK).call("GET", "/health")
    except CallFailed:
        return False
    return isinstance(answer, dict) and answer.get("status") == "ok"


def check_cache(settings: Settings) -> Finding:
    """Checks that the cache of fetched models can be read and written."""
    cache = find_cache(settings.hub)
    path = next(path for path in (cache.root, *cache.root.parents) if os.path.lexists(path))
    try:
        os.listdir(path)
        entries = cache.entries()
    except OSError as problem:
        return report_problem("cache-unusable", f"cannot read the model cache {path}: {problem.strerror}")
    except AntiphonError as error:
        return to_finding("cache-unusable", error)
    if not os.access(path, os.W_OK | os.X_OK):
        return report_problem("cache-unusable", f"cannot write to the model cache {path}")
    return report_ok("cache", f"{cache.root}: {len(entries)} fetched, {cache.free() / GIGABYTE:.0f} GB free")


def check_confinement(settings: Settings) -> Finding:
    """Reports how engine hosts are confined, and the user that they run as."""
    user = settings.engine.user
    try:
        entry = find_other_user(user) if user else None
    except SettingsError as error:
        return to_finding("engine-user-unusable", error)
    if entry is None and os.geteuid() == 0:
        return report_problem("engine-as-root", "engines run with the rights of root", FindingSeverity.ADVICE)
    whose = f"engines run as {entry.pw_name if entry else 'the user of the server'}, with limits"
    if sys.platform != "linux":
        return report_problem(
            "confinement-partial", f"{whose}, and may gain privileges", FindingSeverity.ADVICE
        )
    return report_ok("confinement", f"{whose} and without new privileges")


def check_sockets() -> Iterator[Finding]:
    """Checks the directory for the sockets of a running server."""
    try:
        with create_runtime_directory() as directory:
            yield report_ok("sockets", str(directory.parent))
    except SettingsError as error:
        yield to_finding("no-socket-place", error)
    except OSError as problem:
        yield report_problem("no-socket-place", f"cannot make a directory for sockets: {problem.strerror}")


def check_engine(settings: Settings, models: Sequence[LoadSpec]) -> Iterator[Finding]:
    """Runs the probe until it ends or dies. `models`: the models to load."""
    python, engine = choose_interpreter(settings), settings.engine
    threads = [model.threads for model in settings.models]
    order = {
        "library": engine.library,
        "threads": threads,
        "gpu_layers": [model.gpu_layers for model in settings.models if isinstance(model.gpu_layers, int)],
        "models": [asdict(model) for model in models],
    }
    try:
        done = subprocess.run(
            [python, "-P", "-m", "antiphon.cli.doctor.probe"],
            input=json.dumps(order).encode() + b"\n",
            env=filter_host_environment(os.environ, engine.wait_policy),
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        output, death = done.stdout, "" if done.returncode == 0 else describe_end(done.returncode)
        words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:SHOWN_ERROR]
    except subprocess.TimeoutExpired as late:
        output, death, words = late.stdout or b"", f"no answer within {DEADLINE:.0f} s", ""
    except OSError as problem:
        output, death, words = b"", f"it does not run: {problem}", ""
    yield from read_probe(output, death, words)


def read_probe(output: bytes, death: str, words: str) -> Iterator[Finding]:
    """Reads the probe's findings and explains its end. A library may write other lines between."""
    step, is_alive = {"step": "", "what": ""}, False
    for line in output.splitlines():
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict) and "step" in parsed:
            step = parsed
        elif isinstance(parsed, dict) and "standing" in parsed:
            is_alive = True
            yield Finding(**{**parsed, "standing": FindingSeverity(parsed["standing"])})
    if not is_alive:
        reason = f"the engine's Python cannot run Antiphon ({death or 'it says nothing'})"
        yield report_problem("interpreter-unusable", f"{reason}: {words}" if words else reason)
    elif death and step["step"] == "loading":
        yield report_problem("model-not-loadable", f"loading {step['what']} ends with {death}")
    elif death:
        yield report_problem("library-crashes", f"opening the library of {step['what']} ends with {death}")


def describe_end(code: int) -> str:
    """Describes an exit status for people."""
    return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


MEGABYTE = 1e6
REACHED_S = 2
"""Seconds in which a remote database or Redis must answer."""


def check_tenancy(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Iterator[Finding]:
    """Checks the database, its pepper, the spool, the limits and single sign-on."""
    home = find_home(environ, user_home)
    try:
        with closing(Database(find_store_url(settings.keys.store, home), connect_s=REACHED_S)) as database:
            yield from _check_store(database, settings, home)
    except (StoreRefused, StoreUnavailable) as error:
        yield to_finding("store-unusable", error)
    yield _check_spool(Path(find_spool(settings.ledger.spool, home)), settings.ledger.spool_bytes)
    if settings.limits.url is not None:
        yield _check_limits(settings.limits, settings.limits.url)
    if settings.oidc.issuer is not None and find_spec("jwt") is None:
        yield report_problem("sign-on-unusable", "single sign-on needs a library that is not installed")


def _check_store(database: Database, settings: Settings, home: Path) -> Iterator[Finding]:
    """Checks that the database answers and has this version's tables, and checks its pepper."""
    file = database.file
    if file is not None and not file.exists():
        path = _find_existing(file.parent)
        if not _is_writable(path):
            yield report_problem(
                "store-unusable", f"the database {file} cannot be made: {path} cannot be written"
            )
        else:
            yield report_ok("store", f"{file} is not there yet; the first start makes it")
        return
    standing = database.schema_state()
    if standing.newer:
        yield report_problem("store-newer", f"{database.shown} was made by a later version of Antiphon")
    elif standing.found is None:
        yield report_ok("store", f"{database.shown} is empty; the first start makes its tables")
    elif standing.pending:
        message = (
            f"{database.shown} is at revision {standing.found}, and this version wants {standing.wanted}"
        )
        yield report_problem("store-outdated", message)
    else:
        yield report_ok("store", f"{database.shown} answers, at revision {standing.found}")
        yield _check_pepper(database, settings, home)
    if database.file is None and settings.knowledge.storage != "files":
        yield _check_knowledge(database, settings)


def _check_knowledge(database: Database, settings: Settings) -> Finding:
    """Checks that PostgreSQL can keep knowledge tables: prepares it as the first use does, and undoes
    that."""
    from antiphon.retrieval.postgres.database import KnowledgeDatabase
    from antiphon.retrieval.postgres.schema import prepare_schema

    try:
        pgvector = KnowledgeDatabase(database).read(prepare_schema)
    except KnowledgeUnavailable as error:
        broken = to_finding("knowledge-unusable", error, ": ")
        # The rest of the server works, unless the settings insist on the database.
        insists = settings.knowledge.storage == "database"
        return broken if insists else replace(broken, standing=FindingSeverity.ADVICE)
    version = ".".join(map(str, pgvector.version))
    return report_ok("knowledge", f"{database.shown} can keep knowledge tables, with pgvector {version}")


def _check_pepper(database: Database, settings: Settings, home: Path) -> Finding:
    """Checks that the local pepper is the one of the database's keys."""
    mark, configured = SqlTenancy(database).mark(MARK), settings.keys.pepper
    where = "ANTIPHON_PEPPER" if configured else str(home / PEPPER_FILE)
    if mark is None and not configured and not (home / PEPPER_FILE).exists():
        return report_ok("pepper", f"{where} is not there yet; the first start makes it")
    try:
        pepper = parse_pepper(configured) if configured else load_pepper(home, make=False)
    except StoreRefused as error:
        return to_finding("pepper-unusable", error)
    if mark not in (None, pepper.mark):
        return report_problem("pepper-unusable", f"{where} is not what this database's keys were made with")
    return report_ok("pepper", f"{where} is the one of the database's keys")


def _check_spool(spool: Path, most: int) -> Finding:
    """Checks the directory in which usage is written before it is in the database."""
    path = _find_existing(spool)
    if not path.is_dir() or not _is_writable(path):
        return report_problem(
            "spool-unusable", f"the ledger's spool {spool} cannot be written: {path} cannot"
        )
    free = shutil.disk_usage(path).free
    message = f"{spool}: {free / MEGABYTE:,.0f} MB free; it may take {most / MEGABYTE:,.0f}"
    return (
        report_problem("spool-short", message, FindingSeverity.ADVICE)
        if free < most
        else report_ok("spool", message)
    )


def _check_limits(limits: LimitsSettings, url: str) -> Finding:
    """Checks that the Redis which counts limits for several servers answers."""
    try:
        from antiphon.limits.redis.limiter import check_redis
    except ModuleNotFoundError:
        missing = SettingsError(f"limits.url needs the client of Redis; install it: {explain_extra('redis')}")
        return to_finding("limits-unusable", missing)
    try:
        return report_ok("limits", check_redis(url, REACHED_S))
    except SettingsError as error:
        return to_finding("limits-unusable", error)
    except LimitsUnavailable as error:
        passes = limits.unavailable == "open"  # then each process counts alone, and serves requests
        return report_problem(
            "limits-unusable", error.message, FindingSeverity.ADVICE if passes else FindingSeverity.BROKEN
        )


def _find_existing(path: Path) -> Path:
    """Returns the path, or its nearest parent that exists."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _is_writable(path: Path) -> bool:
    """Whether files can be created in the directory."""
    return os.access(path, os.W_OK | os.X_OK)
