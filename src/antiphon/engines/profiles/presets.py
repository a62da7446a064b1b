"""Presets of providers: the known properties of a vendor or a server. The operator's settings replace them.

The data is in presets.toml. It is read once, at the first use.
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
    """The known properties of one vendor or server. The operator's settings replace them."""

    kind: WireFormat
    """The wire format."""
    key_variable: str
    """The environment variable that usually contains the key."""
    base_url: str | None = None
    """The vendor's address; None if every operator has a different one."""
    needs_key: bool = True
    """Whether every request needs a key. If not, a key is sent only if the operator sets one."""
    key_header: str | None = None
    """The header of the key; None means the header of the wire format."""
    key_prefix: str | None = None
    """The text before the key in the header; None means that of the wire format."""
    is_private: bool = False
    """Whether the address is usually a private or loopback one."""
    takes: tuple[str, ...] = ()
    """Parameters that it takes beyond those of the wire format."""
    refuses: tuple[str, ...] = ()
    """Parameters of the wire format that it refuses or ignores."""
    renames: Mapping[str, str] = {}
    """The vendor's own names of parameters, by their usual names."""
    body: Mapping[str, object] = {}
    """Fields that the body of each generation request gets."""
    token_limit: TokenLimit = "max_tokens"
    """The parameter that limits the output tokens of chats."""
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    """The field of messages that contains reasoning. None if there is no such field."""
    asks_usage: bool = True
    """Whether it takes `stream_options.include_usage`."""
    has_deployments: bool = False
    """Whether MODEL/DEPLOYMENT names a deployment of a model. The vendor gets only the deployment."""
    modalities: tuple[str, ...] = ("text",)
    """The kinds of content in messages to models outside the table. Such a model may still refuse some."""
    context_length: int | None = None
    """The context length of models outside the table."""
    max_output: int | None = None
    """The most output tokens of models outside the table."""
    table: str | None = None
    """The name of the table of its models; None means the preset's own name."""
    price_list: str | None = None
    """The vendor's name in the package genai-prices. None if no prices are published."""
    trace_name: str | None = None
    """The vendor's name in OpenTelemetry's conventions; None means the preset's own name."""


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
