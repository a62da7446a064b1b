"""vLLM's endpoints that load and unload LoRA adapters: /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.dialects.base import LoadCall
from antiphon.dialects.common.fields import FieldScope, filter_fields
from antiphon.dialects.common.request_types import Name
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.domain.adapter import ADAPTER_NAME, NAME_RULE
from antiphon.errors import InvalidValue

LONGEST_PATH = 4096
"""Characters of a path: as many bytes as the system takes."""

AdapterPath = Annotated[str, Meta(min_length=1, max_length=LONGEST_PATH)]


class LoadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: Name
    lora_path: AdapterPath
    load_inplace: bool | None = None
    base_model_name: Name | None = None


class UnloadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: Name


class VLLMAdapters:
    """`AdapterCodec` of the dialect."""

    shapes = (LoadAdapterRequest, UnloadAdapterRequest)

    def decode_load(self, body: bytes) -> LoadCall:
        given = filter_fields(read_object(body), FieldScope.LOAD)
        wire = convert(given, LoadAdapterRequest)
        if not ADAPTER_NAME.fullmatch(wire.lora_name):
            raise InvalidValue(
                f"lora_name must be {NAME_RULE}",
                param="lora_name",
            )
        return LoadCall(wire.lora_name, wire.lora_path, wire.base_model_name, bool(wire.load_inplace))

    def decode_unload(self, body: bytes) -> str:
        given = filter_fields(read_object(body), FieldScope.UNLOAD)
        return convert(given, UnloadAdapterRequest).lora_name

    def loaded(self, name: str) -> str:
        return f"Success: LoRA adapter '{name}' added successfully."

    def unloaded(self, name: str) -> str:
        return f"Success: LoRA adapter '{name}' removed successfully."
