"""What can be set of LoRA adapters: where they come from, where they are kept, and those that are there from
the start. `antiphon.settings` has the rest, and reads them."""

from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.domain.adapter import ADAPTER_NAME
from antiphon.errors import SettingsError
from antiphon.settings_meta import GIB, KIB, describe
from antiphon.settings_model import ModelSettings

REPOSITORY = r"^(\*|[A-Za-z0-9_.-]{1,96}/(\*|[A-Za-z0-9_.-]{1,96}))$"
"""A repository, all of an owner's, or all."""


class LoraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LoRA adapters (adapters.md): where they come from and where they are kept."""

    directories: Annotated[
        tuple[str, ...],
        describe(
            "ANTIPHON_LORA_DIRECTORIES",
            "Directories that callers may load adapters from while the server runs; without one nobody may "
            "load or unload any.",
        ),
    ] = ()
    repositories: Annotated[
        tuple[Annotated[str, Meta(pattern=REPOSITORY)], ...],
        describe(
            "ANTIPHON_LORA_REPOSITORIES",
            "Repositories of the hub that callers may deploy adapters from while the server runs: "
            "OWNER/REPO, OWNER/*, or * for all; none by default.",
        ),
    ] = ()
    registry: Annotated[
        str | None,
        describe(
            "ANTIPHON_LORA_REGISTRY",
            "Directory that adapters are kept in, under their digests; none means `adapters` in "
            "`ANTIPHON_HOME`, or in the platform's directory for data.",
        ),
    ] = None
    memory_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_LORA_MEMORY_BYTES",
            "Bytes of adapters that each engine keeps in memory; the others are read again when their turn "
            "comes.",
        ),
        Meta(ge=0),
    ] = GIB
    max_bytes: Annotated[
        int,
        describe("ANTIPHON_LORA_MAX_BYTES", "Largest file of an adapter that a caller may load, in bytes."),
        Meta(ge=KIB),
    ] = GIB


class AdapterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter that is there from the start. Several are given as a list of tables in the file, by
    repeating `--lora NAME=PATH`, or in `ANTIPHON_ADAPTERS` with commas between them."""

    name: Annotated[
        str, Meta(description="Name that callers use as model.", pattern=f"^{ADAPTER_NAME.pattern}$")
    ]
    path: Annotated[str, Meta(description="A GGUF adapter, or a directory as PEFT saves it.", min_length=1)]
    model: Annotated[
        str | None,
        Meta(description="Name of the model that it adapts; may be left out when there is only one."),
    ] = None


def assign_models(
    adapters: Sequence[AdapterSettings],
    models: Sequence[ModelSettings],
    embedding: Collection[str] | None = (),
) -> tuple[AdapterSettings, ...]:
    """The adapters, each with the name of its model. `embedding`: the models that take none, because they
    make embeddings; None, where that is not known yet, leaves open whose an adapter is that says no model.

    Raises SettingsError.
    """
    names = [model.name for model in models]
    taken = set(names)
    for adapter in adapters:
        if adapter.name in taken:
            raise SettingsError(
                f"two models or adapters are named {adapter.name!r}; give one another name with --lora "
                "NAME=PATH"
            )
        taken.add(adapter.name)
    unsettled = embedding is None and len(names) > 1
    return tuple(
        adapter if unsettled and adapter.model is None else _assign_model(adapter, names, embedding or ())
        for adapter in adapters
    )


def _assign_model(
    adapter: AdapterSettings, models: Sequence[str], embedding: Collection[str]
) -> AdapterSettings:
    homes = [model for model in models if model not in embedding]
    known = ", ".join(homes)
    if not homes or adapter.model in embedding:
        base = adapter.model or models[0]
        raise SettingsError(
            f"the adapter {adapter.name} cannot be served: {base} is an embedding model, which takes none; "
            "leave it out, or serve the model that it was made for"
        )
    if adapter.model is None and len(homes) == 1:
        return msgspec.structs.replace(adapter, model=homes[0])
    if adapter.model is None:
        raise SettingsError(
            f"there are several models ({known}); say which of them the adapter {adapter.name} adapts: "
            'model = "..." in its [[adapters]] table'
        )
    if adapter.model not in models:
        raise SettingsError(
            f"the adapter {adapter.name} adapts {adapter.model!r}, which is not served; there is: {known}"
        )
    return adapter
