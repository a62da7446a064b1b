"""Presets of providers: what is known of a vendor or a server before its operator says anything.

The data is in presets.toml. It is read once, at the first question.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.domain.values import Value

WireFormat = Literal["openai", "anthropic", "gemini"]
TokenLimit = Literal["max_tokens", "max_completion_tokens"]


class ProviderPreset(Value, frozen=True, forbid_unknown_fields=True):
    """What is known of one vendor or server. Settings of the operator go before it."""

    kind: WireFormat
    """The wire format."""
    key_variable: str
    """The environment variable that usually holds the key."""
    base_url: str | None = None
    """None where every operator has an address of their own."""
    needs_key: bool = True
    """Whether every request needs a key. Otherwise a key is sent if there is one."""
    key_header: str | None = None
    """The header of the key, where it is not that of the wire format."""
    key_prefix: str | None = None
    """The text before the key, where it is not that of the wire format."""
    is_private: bool = False
    """Whether the address is usually a private or loopback one."""
    takes: tuple[str, ...] = ()
    """Parameters that it takes beyond those of the wire format."""
    refuses: tuple[str, ...] = ()
    """Parameters of the wire format that it refuses or ignores."""
    renames: Mapping[str, str] = {}
    """Its own names of parameters, by their usual names."""
    body: Mapping[str, object] = {}
    """Fields of the body of each generation request."""
    token_limit: TokenLimit = "max_tokens"
    """The name of the limit of output tokens in chats."""
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    """The field of messages that contains reasoning. None where none does."""
    asks_usage: bool = True
    """Whether it takes `stream_options.include_usage`."""
    has_deployments: bool = False
    """Whether MODEL/DEPLOYMENT names a deployment of a model. The vendor gets only the deployment."""
    modalities: tuple[str, ...] = ("text",)
    """What messages to models that no table knows can contain. Such a model may still refuse it."""
    context_length: int | None = None
    """Context length of models that no table knows."""
    max_output: int | None = None
    """Most output tokens of models that no table knows."""
    table: str | None = None
    """The table of its models, where it is not the one of the preset's own name."""
    price_list: str | None = None
    """The vendor's name in the package genai-prices. None where nobody publishes prices."""
    trace_name: str | None = None
    """The vendor's name in OpenTelemetry's conventions, where it is not the preset's own name."""


@cache
def read_presets() -> Mapping[str, ProviderPreset]:
    """Returns all presets by name, in the order of the data."""
    text = files("antiphon.engines.profiles").joinpath("presets.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, ProviderPreset])


def find_preset(name: str) -> ProviderPreset | None:
    """Returns the preset of that name. Returns None if there is none."""
    return read_presets().get(name)


def list_presets() -> tuple[str, ...]:
    """Returns the names of all presets."""
    return tuple(read_presets())
