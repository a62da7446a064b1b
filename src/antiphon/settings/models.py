"""Settings of models: local models, the hub that they are fetched from, LoRA adapters and aliases."""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.domain.models import ADAPTER_NAME, STAR
from antiphon.errors import SettingsError
from antiphon.settings.server import GIB, KIB, describe


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One local model. Several are given as a list of tables in the file, or by repeating `--model`."""

    name: Annotated[str, Meta(description="Name that callers use.", min_length=1, max_length=200)]
    path: Annotated[
        str,
        Meta(
            description="The GGUF file, hf:OWNER/REPO:FILE on the hub, or minilm. For vLLM, the folder of "
            "weights.",
            min_length=1,
        ),
    ]
    sequences: Annotated[int, Meta(description="Choices that run at once; more wait.", ge=1, le=256)] = 8
    context_length: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(description="Tokens of one sequence; none fits the model's own to the memory."),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="CPU threads; none chooses for the machine."),
    ] = None
    exact: Annotated[
        bool, Meta(description="Bit-equal results alone and in a batch, at some cost in speed.")
    ] = False
    gpu_layers: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=0)],
        Meta(
            description="Layers that graphics devices compute, the last ones; the output counts as one, and "
            "more than there are means all. auto is as many as fit, none with exact; 0 keeps all on the "
            "processor (gpu.md)."
        ),
    ] = "auto"
    devices: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="Devices to use, by the names that doctor shows (`CUDA0`); none means all."),
    ] = ()
    tensor_split: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1e6)], ...],
        Meta(
            description="Share of the layers of each device, such as 3, 1; none uses one device where it "
            "suffices, otherwise divides by free memory."
        ),
    ] = ()
    kv_type: Annotated[Literal["f16", "f32"], Meta(description="Number format of the KV cache.")] = "f16"
    layout: Annotated[
        Literal["pool", "streams"],
        Meta(
            description="How the KV cache is laid out: in streams each sequence has its own part, which is "
            "faster on processors; in a pool prefixes are shared without copying and long prompts run beside "
            "short ones with fewer cells. exact is refused with a pool."
        ),
    ] = "streams"
    cells: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(
            description="Tokens that the KV cache holds, all sequences together; none is context_length for "
            "each, or as many as the memory allows. With fewer, sequences of a pool wait for each other, and "
            "streams are shorter."
        ),
    ] = None
    queue: Annotated[
        int, Meta(description="Choices that may wait for their turn; more are answered 503.", ge=0)
    ] = 512
    queue_per_actor: Annotated[
        int, Meta(description="Of these, choices of one caller; more are answered 429.", ge=0)
    ] = 256
    step_latency: Annotated[
        float,
        Meta(
            description="Seconds of one step that prompts may take while others wait for their next token, "
            "times the number of prompts that come in, at most four; however slow the machine is, a step "
            "computes at least 1280 prompt tokens for each of these seconds. Less is smoother streams, more "
            "is sooner first tokens and more tokens a second.",
            gt=0,
            le=60,
        ),
    ] = 0.1
    tool_calls: Annotated[
        Literal["auto", "deepseek", "harmony", "hermes", "llama", "mistral", "mistral-headed", "phi"],
        Meta(description="How the model writes tool calls; auto is what its chat template says."),
    ] = "auto"
    reasoning: Annotated[
        Literal["auto", "none", "cohere", "gemma", "granite", "harmony", "mistral", "seed", "think"],
        Meta(
            description="How the model marks what it thinks before it answers; auto is what its chat "
            "template says, none leaves it in the text."
        ),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "memory", "file"],
        Meta(
            description="Where the weights lie: copied into memory, where they are read faster, or mapped "
            "from the file, so that servers of one file share its memory. auto copies while the models "
            "together take at most half of the memory that is free."
        ),
    ] = "auto"
    load: Annotated[
        Literal["start", "request"],
        Meta(
            description="When the model is loaded: before the server serves, or when the first request needs "
            "it."
        ),
    ] = "start"
    keep_alive: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description='Seconds without a request after which a model of load = "request" is unloaded; none '
            "keeps it until another model needs its memory."
        ),
    ] = None
    keep_prefixes: Annotated[
        bool, Meta(description="Keep computed prompts in free cells, for later requests that begin alike.")
    ] = True
    engine: Annotated[
        Literal["llama", "vllm"],
        Meta(description="What computes: the embedded llama.cpp, or vLLM in an environment of its own."),
    ] = "llama"
    interpreter: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Python of the environment that has vLLM: .venvs/cluster/bin/python."),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Number format in which vLLM computes; auto is what the model's folder says."),
    ] = "auto"
    memory_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Share of each device's memory that vLLM takes for weights and KV cache; none is "
            "vLLM's own default. On a processor, none makes a KV cache of cells."
        ),
    ] = None
    tensor_parallel: Annotated[
        int, Meta(description="Devices over which vLLM splits each layer.", ge=1, le=64)
    ] = 1
    cluster: Annotated[
        bool,
        Meta(
            description="Whether the model runs in the cluster, where the server has one; otherwise it runs "
            "in a process of this server."
        ),
    ] = True
    replicas: Annotated[
        int, Meta(description="Replicas in the cluster; with max_replicas the fewest.", ge=1, le=1000)
    ] = 1
    max_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Most replicas in the cluster: replicas are added while more sequences run and wait "
            "than all replicas have places for; none keeps their number."
        ),
    ] = None
    replica_cpus: Annotated[
        Annotated[float, Meta(gt=0, le=1024)] | None,
        Meta(description="CPUs that each replica takes; none is its threads, or 1."),
    ] = None
    replica_gpus: Annotated[
        float,
        Meta(description="GPUs that each replica takes, all of one machine; a part shares one.", ge=0, le=64),
    ] = 0.0
    replica_resources: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s=]+=[0-9]{1,6}(\.[0-9]{1,4})?$")], ...],
        Meta(
            description="Other resources that each replica takes, each NAME=NUMBER, as the cluster's "
            "machines name them."
        ),
    ] = ()


LLAMA_DEVICES = frozenset({"gpu_layers", "devices", "tensor_split"})
LLAMA_ONLY = LLAMA_DEVICES | {"exact", "kv_type", "layout", "step_latency", "weights", "load", "keep_alive"}
VLLM_ONLY = frozenset({"interpreter", "dtype", "memory_share", "tensor_parallel"})
"""The settings of a model that act on one engine only."""


def require_engine_settings(models: Iterable[ModelSettings]) -> None:
    """Raises SettingsError for a setting that does not act on the model's engine."""
    for model in models:
        idle = LLAMA_ONLY if model.engine == "vllm" else VLLM_ONLY
        for name in sorted(idle):
            if getattr(model, name) != MODEL_DEFAULTS[name]:
                raise SettingsError(
                    f"{name} has no effect on the model {model.name}, whose engine is {model.engine}; leave "
                    "it out"
                )
        if model.engine == "vllm" and model.interpreter is None:
            raise SettingsError(
                f"the model {model.name} needs an environment with vLLM: run `make cluster`, then set "
                'interpreter = ".venvs/cluster/bin/python" in its table'
            )
        if model.exact and model.layout == "pool":
            raise SettingsError(
                f'layout = "pool" of the model {model.name} has no effect with exact = true, which needs '
                "streams; leave one out"
            )
        if model.memory_share is not None and model.cells is not None:
            raise SettingsError(
                f"cells of the model {model.name} has no effect beside memory_share, which gives vLLM's KV "
                "cache its size; leave one out"
            )


def list_parked(models: Iterable[ModelSettings]) -> frozenset[str]:
    """Returns the names of the models that are loaded on request."""
    return frozenset(model.name for model in models if model.load == "request")


MODEL_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(ModelSettings)}
"""The default of each setting of a model."""


class HubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models that are fetched: `--model hf:OWNER/REPO:FILE.gguf`."""

    cache: Annotated[
        str | None,
        describe(
            "ANTIPHON_HUB_CACHE",
            "Directory that fetched models are kept in; none means `models` in `ANTIPHON_HOME`, or the "
            "platform's cache directory.",
        ),
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        describe(
            "ANTIPHON_HUB_ENDPOINT",
            "Address of the hub; none means `HF_ENDPOINT`, or the public hub.",
            example="https://hub.example.org",
        ),
    ] = None
    offline: Annotated[
        bool,
        describe("ANTIPHON_HUB_OFFLINE", "Ask no hub: only models that were fetched before are served."),
    ] = False


REPOSITORY = r"^(\*|[A-Za-z0-9_.-]{1,96}/(\*|[A-Za-z0-9_.-]{1,96}))$"
"""A pattern for one repository, for all repositories of an owner, or for all repositories."""


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
    keep_names: Annotated[
        bool,
        describe(
            "ANTIPHON_LORA_KEEP_NAMES",
            "Whether adapters that were loaded while the server ran are served again after a restart.",
        ),
    ] = True
    project_adapters: Annotated[
        int,
        describe(
            "ANTIPHON_LORA_PROJECT_ADAPTERS",
            "Adapters that one project may have, loaded by its own service keys from the repositories; 0 "
            "lets only the operator load any.",
        ),
        Meta(ge=0, le=2048),
    ] = 0
    project_bytes: Annotated[
        int,
        describe("ANTIPHON_LORA_PROJECT_BYTES", "Bytes of all adapters of one project."),
        Meta(ge=KIB),
    ] = 4 * GIB


class AdapterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter that is served from the start. Several are given as a list of tables in the file, by
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
    """Returns the adapters, each with the name of its model. Raises SettingsError.

    `embedding` names the embedding models, which take no adapter. It is None if this is not known yet. Then
    an adapter that names no model gets none if there are several models.
    """
    names = [model.name for model in models]
    used_names = set(names)
    for adapter in adapters:
        if adapter.name in used_names:
            raise SettingsError(
                f"two models or adapters are named {adapter.name!r}; give one another name with --lora "
                "NAME=PATH"
            )
        used_names.add(adapter.name)
    unsettled = embedding is None and len(names) > 1
    return tuple(
        adapter if unsettled and adapter.model is None else _assign_model(adapter, names, embedding or ())
        for adapter in adapters
    )


def _assign_model(
    adapter: AdapterSettings, models: Sequence[str], embedding: Collection[str]
) -> AdapterSettings:
    """Returns the adapter with the name of its model. Raises SettingsError if no such model takes
    adapters."""
    bases = [model for model in models if model not in embedding]
    base_names = ", ".join(bases)
    if not bases or adapter.model in embedding:
        base = adapter.model or models[0]
        raise SettingsError(
            f"the adapter {adapter.name} cannot be served: {base} is an embedding model, which takes none; "
            "leave it out, or serve the model that it was made for"
        )
    if adapter.model is None and len(bases) == 1:
        return msgspec.structs.replace(adapter, model=bases[0])
    if adapter.model is None:
        raise SettingsError(
            f"there are several models ({base_names}); say which of them the adapter {adapter.name} adapts: "
            'model = "..." in its [[adapters]] table'
        )
    if adapter.model not in models:
        raise SettingsError(
            f"the adapter {adapter.name} adapts {adapter.model!r}, which is not served; there is: "
            f"{base_names}"
        )
    return adapter


class AliasSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One other name of a model, or a pattern of such. Several are given as a list of tables in the file, by
    repeating `--alias NAME=MODEL`, or in `ANTIPHON_ALIASES` with commas between them. A model's own name
    comes before aliases, a name before patterns, and a pattern with more characters before others. The
    Fireworks dialect brings the last of all, `accounts/fireworks/models/*`, whose model is `*`."""

    name: Annotated[
        str,
        Meta(
            description="What callers may send as model; one `*` in it stands for any characters but `#`.",
            min_length=1,
            max_length=256,
        ),
    ]
    model: Annotated[
        str,
        Meta(
            description="Name of the model or adapter that it means; a `*` in it is the text that the name's "
            "`*` matched.",
            min_length=1,
            max_length=256,
        ),
    ]


def require_aliases(aliases: Sequence[AliasSettings], served: Collection[str], is_fixed: bool) -> None:
    """Raises SettingsError for an alias whose model does not exist, or that no caller can use.

    `served` names the models and adapters. `is_fixed`: whether no adapter can be added while the server runs.
    """
    names = [alias.name for alias in aliases]
    for at, alias in enumerate(aliases):
        name, model = alias.name, alias.model
        if name in names[:at]:
            raise SettingsError(f"two aliases are named {name!r}; leave one out")
        if name.count(STAR) > 1 or model.count(STAR) > name.count(STAR):
            raise SettingsError(
                f"the alias {name!r} of {model!r} must have at most one {STAR}, and its model only where the "
                "name has one"
            )
        if name in served:
            raise SettingsError(f"the alias {name!r} is the name of a model; give it another name")
        if model in names and model not in served:
            raise SettingsError(
                f"the alias {name!r} leads to the alias {model!r}; say the name of the model itself"
            )
        if is_fixed and STAR not in model and model not in served:
            served_names = ", ".join(served)
            raise SettingsError(
                f"the alias {name!r} leads to {model!r}, which is not served; this server has: {served_names}"
            )
