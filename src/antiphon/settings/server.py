"""Settings of the HTTP side, media, the log, tracing and knowledge tables."""

import ipaddress
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MAX_SECONDS = 31_536_000
"""The largest time in seconds: a year. Timers cannot count much longer times."""

POSITIVE = Meta(gt=0, le=MAX_SECONDS)
AT_LEAST_ZERO = Meta(ge=0, le=MAX_SECONDS)

PATH_MARK = {"kind": "path"}
PathText = Annotated[str, Meta(extra=PATH_MARK)]
"""A path in which `~` is a home directory. `settings.loading` checks that there is one."""

HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
"""An ASCII host name, or an IP address with its zone."""


def describe(env: str, doc: str, example: str = "") -> Meta:
    """Declares a setting: its environment variable, documentation and an example of a value."""
    return Meta(description=doc, extra={"env": env}, examples=[example] if example else None)


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: Annotated[
        str,
        describe(
            "ANTIPHON_HOST", "Address to listen on. If it is not a loopback address, the server needs a key."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, describe("ANTIPHON_PORT", "TCP port to listen on. 0 takes a free one."), Meta(ge=0, le=65535)
    ] = 8000
    workers: Annotated[
        int,
        describe(
            "ANTIPHON_WORKERS",
            "Number of HTTP processes (workers.md). Under load, each uses a core.",
        ),
        Meta(ge=1, le=64),
    ] = 1
    api_key: Annotated[
        str | None,
        describe(
            "ANTIPHON_API_KEY",
            "The key that callers must send. Without one, the server listens only on loopback addresses.",
        ),
    ] = None
    max_body_bytes: Annotated[
        int,
        describe("ANTIPHON_MAX_BODY_BYTES", "Largest request body in bytes; a larger one is a 413."),
        Meta(ge=KIB),
    ] = 8 * MIB
    max_bodies_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_MAX_BODIES_BYTES",
            "Bytes of all running requests' bodies in one HTTP process, at least one whole body. "
            "Further requests get a 503. With keys on, a caller can use at most as many bytes as it "
            "leaves free; otherwise it gets a 429.",
        ),
        Meta(ge=KIB),
    ] = 64 * MIB
    unknown_fields: Annotated[
        Literal["refuse", "report"],
        describe(
            "ANTIPHON_UNKNOWN_FIELDS",
            "What happens to unknown fields of a generation: a 400, or they are ignored and the "
            "header x-antiphon-ignored names them.",
        ),
    ] = "refuse"
    schema_keywords: Annotated[
        Literal["report", "strict"],
        describe(
            "ANTIPHON_SCHEMA_KEYWORDS",
            "What happens to JSON Schema keywords that the server cannot enforce: the header "
            "x-antiphon-relaxed names them, or a 400.",
        ),
    ] = "report"
    hosted_tools: Annotated[
        Literal["ignore", "refuse"],
        describe(
            "ANTIPHON_HOSTED_TOOLS",
            "What happens to tools that OpenAI runs (responses.md) or Anthropic (messages.md), such as "
            "web_search: they are left out and the header x-antiphon-ignored names them, or a 400.",
        ),
    ] = "ignore"
    request_templates: Annotated[
        bool,
        describe(
            "ANTIPHON_REQUEST_TEMPLATES",
            "Whether callers can send their own chat template. It is a program, and runs in a "
            "separate process (chat.md).",
        ),
    ] = False
    max_logprobs: Annotated[
        int,
        describe(
            "ANTIPHON_MAX_LOGPROBS",
            "Most log-probabilities that a request can ask for each token (logprobs, top_logprobs, "
            "prompt_logprobs). -1 allows the whole vocabulary. Large answers are slow.",
        ),
        Meta(ge=-1),
    ] = 20
    receive_timeout: Annotated[
        float,
        describe("ANTIPHON_RECEIVE_TIMEOUT", "Seconds in which a request must arrive completely."),
        POSITIVE,
    ] = 30.0
    keep_alive_interval: Annotated[
        float,
        describe(
            "ANTIPHON_KEEP_ALIVE_INTERVAL",
            "After this many seconds without an event, a stream gets a comment line.",
        ),
        POSITIVE,
    ] = 10.0
    send_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_SEND_TIMEOUT",
            "Seconds in which a client must read a part of its answer. Otherwise the connection is closed.",
        ),
        POSITIVE,
    ] = 60.0
    request_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_REQUEST_TIMEOUT", "Seconds that one generation can take, with its time in the queue."
        ),
        POSITIVE,
    ] = 3600.0
    drain_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_DRAIN_TIMEOUT",
            "Seconds in which running requests can finish at shutdown. Your service manager must wait at "
            "least 10 seconds longer (deploy.md).",
        ),
        AT_LEAST_ZERO,
    ] = 25.0
    drain_delay: Annotated[
        float,
        describe(
            "ANTIPHON_DRAIN_DELAY",
            "Seconds at shutdown in which the server still accepts requests, while `/health/ready` answers "
            "503, so that a load balancer sends no more.",
        ),
        AT_LEAST_ZERO,
    ] = 0.0
    retire_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_RETIRE_TIMEOUT",
            "Seconds in which running requests can finish after a rolling restart or a reload.",
        ),
        AT_LEAST_ZERO,
    ] = 600.0
    retire_delay: Annotated[
        float,
        describe(
            "ANTIPHON_RETIRE_DELAY",
            "Seconds for which a reload keeps an engine that it has removed, even without requests. They "
            "are a part of `retire_timeout`.",
        ),
        AT_LEAST_ZERO,
    ] = 5.0
    cors_origins: Annotated[
        tuple[str, ...],
        describe("ANTIPHON_CORS_ORIGINS", "Origins of web pages that can call the server."),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        describe(
            "ANTIPHON_ALLOWED_HOSTS",
            "Further host names that are accepted if the server has no key. Loopback names always are.",
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        describe(
            "ANTIPHON_TRUSTED_PROXIES",
            "Addresses and networks of proxies whose X-Forwarded-For names the client, for the log and the "
            "audit (operations.md).",
            "127.0.0.1",
        ),
    ] = ()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the settings without the key. `repr` and logs show this form."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name == "api_key" and value else value) for name, value in values.items()]

    def __repr__(self) -> str:
        return f"ServerSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log records on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        describe("ANTIPHON_LOG_LEVEL", "The lowest level that is written."),
    ] = "info"
    format: Annotated[
        Literal["text", "json"],
        describe("ANTIPHON_LOG_FORMAT", "Form of each record: a line of text, or a JSON object."),
    ] = "text"


FETCHED_HOST = r"^(\*|[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?)$"
"""An entry of `media.fetch`. Numbers are hosts, too."""


class MediaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images and recordings for models of this server (media.md)."""

    fetch: Annotated[
        tuple[Annotated[str, Meta(pattern=FETCHED_HOST)], ...],
        describe(
            "ANTIPHON_MEDIA_FETCH",
            "Hosts from which files at https: addresses are fetched: HOST or HOST:PORT, or `*` for all "
            "public hosts. Empty fetches nothing: callers then send data: URLs.",
            "images.example.com",
        ),
    ] = ()
    fetch_private: Annotated[
        bool,
        describe(
            "ANTIPHON_MEDIA_FETCH_PRIVATE",
            "Whether the hosts that `fetch` names can have private addresses.",
        ),
    ] = False


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and the metrics of generative AI, sent to an OpenTelemetry collector (tracing.md)."""

    endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")] | None,
        describe(
            "ANTIPHON_TRACING_ENDPOINT",
            "Address of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. "
            "None sends nothing. Needs the extra `otlp`.",
        ),
    ] = None
    service_name: Annotated[
        str,
        describe("ANTIPHON_TRACING_SERVICE_NAME", "The name of this server in the tracing backend."),
        Meta(min_length=1, max_length=200),
    ] = "antiphon"
    sample_ratio: Annotated[
        float,
        describe(
            "ANTIPHON_TRACING_SAMPLE_RATIO",
            "Share of requests that are traced, from 0 to 1, by the id of the trace. If the caller's "
            "`traceparent` is not sampled, the request is not traced.",
        ),
        Meta(ge=0, le=1),
    ] = 1.0
    content: Annotated[
        bool,
        describe(
            "ANTIPHON_TRACING_CONTENT",
            "Whether spans contain the texts of prompts, answers and knowledge tables.",
        ),
    ] = False
    metrics_interval: Annotated[
        float,
        describe("ANTIPHON_TRACING_METRICS_INTERVAL", "Seconds between two exports of metrics."),
        POSITIVE,
    ] = 60.0


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine. False for an unknown host name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Whether the host and port of an http address are usable."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode("ascii")
        return HOST.fullmatch(host) is not None and parts.port != 0
    except ValueError:  # UnicodeError, for a label that is empty, too long or no IDNA, is one
        return False


class KnowledgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Knowledge tables: their place, and limits for each project (knowledge.md)."""

    directory: Annotated[
        PathText | None,
        describe(
            "ANTIPHON_KNOWLEDGE_DIRECTORY",
            "Directory of uploads and of tables in files. It must be on a local disk, and only one server "
            "can use it. None means `knowledge` in `ANTIPHON_HOME`, or in the platform's data directory.",
        ),
    ] = None
    storage: Annotated[
        Literal["auto", "files", "database"],
        describe(
            "ANTIPHON_KNOWLEDGE_STORAGE",
            "Where tables are: in `files` of the directory, or in the `database` of `keys.store`, "
            "PostgreSQL with pgvector. `auto` takes the database if it is PostgreSQL.",
        ),
    ] = "auto"
    memory_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MEMORY_BYTES",
            "Bytes of vectors in memory, for all tables in files. If they are not enough, tables are "
            "read again at their next search.",
        ),
        Meta(ge=16 * MIB),
    ] = 512 * MIB
    max_file_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MAX_FILE_BYTES",
            "Largest file in bytes. A larger one is a 413. It must arrive within `receive_timeout`, "
            "and counts in `max_bodies_bytes` meanwhile.",
        ),
        Meta(ge=KIB, le=GIB),
    ] = 32 * MIB
    max_tables: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_TABLES", "Most knowledge tables of one project."),
        Meta(ge=1, le=10_000),
    ] = 100
    max_documents: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_DOCUMENTS", "Most documents in all tables of one project."),
        Meta(ge=1),
    ] = 100_000
    max_chunks: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_CHUNKS", "Most chunks in all tables of one project."),
        Meta(ge=1),
    ] = 2_000_000
    max_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MAX_BYTES",
            "Most bytes of texts and vectors in all tables of one project, and of its files that wait to be "
            "read. On the disk they need up to three times as much.",
        ),
        Meta(ge=MIB),
    ] = 20 * GIB
    max_waiting_files: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MAX_WAITING_FILES",
            "Most files of one project that wait to be read. One more is a 409.",
        ),
        Meta(ge=1, le=100_000),
    ] = 1_000
