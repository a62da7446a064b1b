"""The message that a server prints when it has started: a panel for users, or a record in a JSON log."""

import json
import shlex
from collections.abc import Iterator

import antiphon
from antiphon.cli.admin_client import find_operator_file
from antiphon.cli.output import KEY_VARIABLE, escape_unprintable
from antiphon.domain.request import EmbeddingFacts
from antiphon.engines.base import EngineInfo
from antiphon.processes.supervisor import ServingInfo
from antiphon.settings.models import ModelSettings, list_host_names
from antiphon.settings.providers import RouteSettings
from antiphon.settings.schema import Settings

GIGABYTE = 1e9


def describe_capacity(model: ModelSettings) -> str:
    """Describes the hosts, the context length and the sequences of a sized model."""
    size = f"{model.sequences} x {model.context_length} tokens"
    size += f", {model.cells} in total" if model.cells else ""
    return f"{model.hosts} hosts, each {size}" if model.hosts > 1 else size


def describe_route(route: RouteSettings) -> str:
    if route.provider is None:
        return escape_unprintable(route.engine or "")
    model = "" if route.model is None else f"/{route.model}"
    return escape_unprintable(route.provider + model)


def build_example(model: str, info: EngineInfo | None) -> tuple[str, dict[str, object]]:
    """Returns the path and the body of an example request. `info`: the engine of a local model."""
    question = "What is Antiphon?"
    if info is not None and info.embedding is not None:
        if info.embedding.ranks:
            return "/v1/rerank", {"model": model, "query": question, "documents": ["A server.", "A song."]}
        return "/v1/embeddings", {"model": model, "input": question}
    messages = [{"role": "user", "content": question}]
    return "/v1/chat/completions", {"model": model, "messages": messages}


def describe_embedding(embedding: EmbeddingFacts) -> str:
    """Describes the result of an embedding model or a reranker."""
    if embedding.ranks:
        return "ranks documents"
    return f"vectors of {embedding.dimensions} dimensions ({embedding.pooling} pooling)"


def describe_devices(info: EngineInfo) -> Iterator[str]:
    """Describes each device that runs layers of a model."""
    loads_by_device = {device.device: device for device in info.load.devices}
    for device in info.devices:
        text = f"{device.layers} of {device.total_layers} layers on {device.device} ({device.description})"
        load = loads_by_device.get(device.device)
        if load is not None and load.used is not None:
            text += f", {load.used / GIGABYTE:.1f} of {load.total / GIGABYTE:.1f} GB in use"
        yield escape_unprintable(text)


def build_key_expression(settings: Settings) -> str:
    """Returns a shell expression for the key: from the operator's file or from the environment variable.

    Returns an empty text if the server needs no key.
    """
    if settings.keys.enabled and (file := find_operator_file()).is_file():
        return f"$(cat {shlex.quote(str(file.absolute()))})"
    return f"${KEY_VARIABLE}" if settings.server.api_key or settings.keys.enabled else ""


def build_start_record(settings: Settings, serving: ServingInfo) -> dict[str, object]:
    """Returns the fields of the log record of a started server."""
    names = [*(model.name for model in settings.models), *(model.name for model in settings.routed_models)]
    return {
        "url": serving.url,
        "version": antiphon.__version__,
        "models": names,
        "adapters": [adapter.name for adapter in settings.adapters],
        "libraries": sorted({engine.library for engine in serving.engines.values()}),
        "workers": settings.server.workers,
        "keys": settings.keys.enabled,
    }


def format_panel(settings: Settings, serving: ServingInfo) -> str:
    """Formats the start-up panel: address, models, library and an example request."""
    lines = ["", f"  Antiphon listens on {serving.url}", ""]
    for model in settings.models:
        info, *other_hosts = [serving.engines.get(name) for name in list_host_names(model)]
        if info is None:
            lines.append(f"  model    {escape_unprintable(model.name)}: loaded by its first request")
            continue
        size = f"{info.parameters / 1e6:.1f} M parameters, {info.quantization}"
        details = ", exact" if info.exact else ""
        if info.embedding is not None:
            details += f", {describe_embedding(info.embedding)}"
        lines.append(
            f"  model    {escape_unprintable(model.name)}: {size}, {describe_capacity(model)}{details}"
        )
        for host_info in filter(None, (info, *other_hosts)):
            lines += [f"  device   {description}" for description in describe_devices(host_info)]
        if adapters := [adapter.name for adapter in settings.adapters if adapter.model == model.name]:
            lines.append(f"  lora     {', '.join(adapters)}")
    for routed_model in settings.routed_models:
        routes = ", ".join(describe_route(route) for route in routed_model.list_routes())
        lines.append(f"  model    {escape_unprintable(routed_model.name)}: {routes}")
    if settings.server.workers > 1:
        lines.append(f"  workers  {settings.server.workers} HTTP processes")
    first_model = [
        *(model.name for model in settings.models),
        *(model.name for model in settings.routed_models),
    ][0]
    engine = serving.engines.get(first_model) or serving.engines.get(f"{first_model}/1")
    if engine is not None:
        lines.append(
            f"  library  {engine.library}, {engine.threads} threads, {' '.join(engine.cpu_features)}"
        )
    path, body = build_example(first_model, engine)
    key = build_key_expression(settings)
    header = f'  -H "Authorization: Bearer {key}" \\\n' if key else ""
    lines += [
        f"  docs     {serving.url}/docs",
        "",
        "  Try it:",
        "",
        f"curl -s {serving.url}{path} \\",
        f"{header}  -H 'Content-Type: application/json' \\",
        f"  -d {shlex.quote(json.dumps(body))}",
        "",
    ]
    return "\n".join(lines)
