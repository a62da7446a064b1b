"""Settings of vendors: the providers, and the models with routes.

In the file a `[[models]]` table with `routes` or `provider` is a routed model; any other table is a local
model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.domain.models import STAR
from antiphon.domain.vendor_fields import RESERVED_HEADERS, is_header_name, is_protected
from antiphon.errors import SettingsError
from antiphon.settings.server import POSITIVE, PathText, is_address

PROVIDER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

EXTRA_NAME = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
"""The name of a field in a vendor's body."""


WireFormat = Literal["openai", "anthropic", "gemini"]
"""The APIs of vendors. `assembly.vendors` has the upstream dialect of each."""


class ProviderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vendor, or another server. A preset has the values that you leave out: the one in `preset`,
    otherwise the one with the provider's name."""

    preset: Annotated[
        str | None, Meta(description="Name of a preset: openai, anthropic, vllm and others (vendors.md).")
    ] = None
    kind: Annotated[
        WireFormat | None,
        Meta(description="The vendor's API."),
    ] = None
    api: Annotated[
        Literal["chat", "responses"],
        Meta(
            description="For the kind openai: the API of chats, /chat/completions or /responses "
            "(vendors-responses.md)."
        ),
    ] = "chat"
    base_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@\\]+(/[^\s?#\\]*)?$")] | None,
        Meta(description="Address below which the vendor's API is.", examples=["https://api.example.org/v1"]),
    ] = None
    key: Annotated[
        Annotated[PathText, Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")] | None,
        Meta(
            description="The place of the key: env:NAME is an environment variable, file:PATH a file. You "
            "cannot write the key itself here.",
            examples=["env:OPENAI_API_KEY"],
        ),
    ] = None
    headers: Annotated[dict[str, str], Meta(description="Further headers of each request.")] = {}
    private: Annotated[
        bool | None,
        Meta(description="Whether the address can be a private or loopback one."),
    ] = None
    pass_addresses: Annotated[
        bool,
        Meta(description="Whether https: addresses of images are sent to the vendor, which opens them."),
    ] = False
    pass_hosted_tools: Annotated[
        bool,
        Meta(
            description="For the kind anthropic: whether the vendor runs its own tools for callers of the "
            "Messages API. They cost extra, which no limit counts (vendors-anthropic.md#tools)."
        ),
    ] = False
    proxy: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#\\]+/?$")] | None,
        Meta(description="HTTP proxy for the requests.", examples=["http://proxy.example.org:3128"]),
    ] = None
    ca_file: Annotated[
        str | None, Meta(description="File with the certificates to trust instead of the system's.")
    ] = None
    connections: Annotated[
        int,
        Meta(description="Most connections of each HTTP process. Other requests wait."),
        Meta(ge=1, le=100_000),
    ] = 1024
    connect_timeout: Annotated[
        float,
        Meta(description="Seconds in which a connection must be open, with the look-up of the host name."),
        POSITIVE,
    ] = 5.0
    first_byte_timeout: Annotated[
        float,
        Meta(
            description="Seconds in which a stream must have its first content, unless it sends other bytes "
            "meanwhile. Answers without a stream have `timeout`."
        ),
        POSITIVE,
    ] = 120.0
    chunk_timeout: Annotated[
        float, Meta(description="Most seconds between two parts of a stream."), POSITIVE
    ] = 60.0
    timeout: Annotated[float, Meta(description="Seconds in which an answer must be complete."), POSITIVE] = (
        600.0
    )
    max_answer_bytes: Annotated[
        int,
        Meta(
            description="Most bytes of a whole answer, and of one event of a stream. Answers with vectors "
            "or speech have other limits (vendor-faults.md)."
        ),
        Meta(ge=65_536, le=256 << 20),
    ] = 8 << 20
    takes: Annotated[
        tuple[str, ...],
        Meta(description="More parameters that this provider takes than its kind and preset do."),
    ] = ()
    refuses: Annotated[
        tuple[str, ...],
        Meta(description="Parameters that this provider does not take. Requests with them get a 400."),
    ] = ()
    extra_params: Annotated[
        tuple[Annotated[str, Meta(pattern=EXTRA_NAME)], ...],
        Meta(
            description="The vendor's own fields that callers can add to the body (inference_extra_params). "
            "Others are a 400.",
            examples=[["provider", "web_search_options"]],
        ),
    ] = ()
    extra_headers: Annotated[
        tuple[str, ...],
        Meta(
            description="Headers that callers can add (inference_extra_headers). Others are a 400. Headers "
            "of credentials or of the connection cannot be allowed.",
            examples=[["x-trace-id"]],
        ),
    ] = ()
    context_length: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Context length of models without a profile."),
    ] = None
    max_output: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most output tokens of models without a profile."),
    ] = None


class ProfileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Abilities of a vendor's model. They replace those of the built-in table."""

    context_length: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens of prompt and output together.")
    ] = None
    max_output: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Most output tokens.")] = None
    modalities: Annotated[
        tuple[Literal["text", "image", "audio", "document"], ...] | None,
        Meta(description="What messages can contain. A document is a PDF."),
    ] = None
    output_modalities: Annotated[
        tuple[Literal["text", "audio"], ...] | None, Meta(description="What answers can contain.")
    ] = None
    reasoning: Annotated[bool | None, Meta(description="Whether it can reason before it answers.")] = None
    refused: Annotated[tuple[str, ...] | None, Meta(description="Parameters that it does not take.")] = None


class RouteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to serve a model: a provider's model, or a local model."""

    provider: Annotated[str | None, Meta(description="Name of a provider.")] = None
    engine: Annotated[str | None, Meta(description="Name of a local model, instead of a provider.")] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(
            description="The vendor's name of the model. By default the name of the model in the settings; "
            "of a pattern, the text that `*` matched."
        ),
    ] = None
    weight: Annotated[
        float, Meta(description="Share of the requests among routes of the same order.", gt=0, le=1e6)
    ] = 1.0
    order: Annotated[int, Meta(description="Routes with a lower order are tried first.", ge=1, le=1000)] = 1
    in_flight: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most requests that run on this route at once, in the whole server."),
    ] = None


class RoutedModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that is served by routes: `[[models]]` with `routes` or `provider`."""

    name: Annotated[
        str,
        Meta(
            description="Name that callers use. One `*` at its end makes a pattern: the rest of the name is "
            "the vendor's model.",
            min_length=1,
            max_length=200,
        ),
    ]
    provider: Annotated[str | None, Meta(description="The only provider, instead of routes.")] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="With `provider`: the vendor's name of the model."),
    ] = None
    routes: Annotated[
        tuple[RouteSettings, ...], Meta(description="The ways to serve the model (routes.md).")
    ] = ()
    prefer_prefix: Annotated[
        bool,
        Meta(
            description="Whether requests with the same prompt_cache_key, or the same beginning, go to the "
            "same route."
        ),
    ] = False
    profile: Annotated[
        ProfileSettings,
        Meta(description="Abilities of the model, instead of the built-in ones (vendors.md)."),
    ] = ProfileSettings()

    def list_routes(self) -> tuple[RouteSettings, ...]:
        """Returns the routes. `provider` alone is one route."""
        return self.routes or (RouteSettings(provider=self.provider, model=self.model),)


def is_routed(table: object) -> bool:
    """Whether a `[[models]]` table of the file is a routed model."""
    return isinstance(table, Mapping) and not {"routes", "provider"}.isdisjoint(table)


def is_pattern(name: str) -> bool:
    """Whether a model's name is a pattern of names."""
    return STAR in name


def list_providers(model: RoutedModelSettings) -> Iterator[str]:
    """Yields the name of the provider of each route that has one."""
    return (route.provider for route in model.list_routes() if route.provider is not None)


def require_routed_models(
    models: Sequence[RoutedModelSettings],
    providers: Mapping[str, ProviderSettings],
    local: Collection[str],
) -> None:
    """Raises SettingsError for a routed model whose name or routes cannot be used. `local`: the names of
    local models."""
    names = set(local)
    for model in models:
        if model.name in names:
            raise SettingsError(f"two models are named {model.name!r}; give one of them another name")
        names.add(model.name)
        if model.name.count(STAR) > 1 or (is_pattern(model.name) and not model.name.endswith(STAR)):
            raise SettingsError(f"the model {model.name!r} can have one {STAR}, at its end")
        if bool(model.routes) == (model.provider is not None):
            raise SettingsError(f"the model {model.name!r} must have routes or a provider, and not both")
        if model.routes and model.model is not None:
            raise SettingsError(
                f"the model {model.name!r} has routes, so name the vendor's model in each route"
            )
        for route in model.list_routes():
            _require_route(route, model, providers, local)


def _require_route(
    route: RouteSettings,
    model: RoutedModelSettings,
    providers: Mapping[str, ProviderSettings],
    local: Collection[str],
) -> None:
    """Raises SettingsError for a route that does not lead to exactly one provider or local model that
    exists."""
    if (route.provider is None) == (route.engine is None):
        raise SettingsError(
            f"each route of the model {model.name!r} must have a provider or an engine, and not both"
        )
    if route.provider is not None and route.provider not in providers:
        provider_names = ", ".join(providers) or "none"
        raise SettingsError(
            f"the model {model.name!r} leads to the provider {route.provider!r}, which has no "
            f"[providers.{route.provider}]; there is: {provider_names}"
        )
    if route.engine is not None and route.engine not in local:
        model_names = ", ".join(local) or "none"
        raise SettingsError(
            f"the model {model.name!r} leads to the local model {route.engine!r}, which is not served; there "
            f"is: {model_names}"
        )
    if route.engine is not None and (route.model is not None or is_pattern(model.name)):
        raise SettingsError(
            f"a route of the model {model.name!r} has an engine, which serves one model only; leave out the "
            f"route's model, and {STAR} in the name"
        )


def require_provider(name: str, provider: ProviderSettings) -> None:
    """Raises SettingsError for a provider with a reserved header or an unusable address."""
    for header, value in provider.headers.items():
        is_usable = is_header_name(header) and value.isprintable()
        if header.lower() in RESERVED_HEADERS or not is_usable:
            raise SettingsError(
                f'providers.{name}.headers cannot set {header!r}; a key belongs into key = "env:NAME"'
            )
    own_headers = {header.lower() for header in provider.headers}
    for header in provider.extra_headers:
        if not is_header_name(header) or is_protected(header) or header.lower() in own_headers:
            raise SettingsError(
                f"providers.{name}.extra_headers cannot have {header!r}: callers never set headers of "
                "credentials, of the connection, or of `headers`"
            )
    for option, url in (("base_url", provider.base_url), ("proxy", provider.proxy)):
        if url is not None and not is_address(url):
            raise SettingsError(
                f"providers.{name}.{option} has no usable host or port; write it as https://HOST or https://HOST:PORT"
            )
