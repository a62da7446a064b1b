"""Settings of models: local models, the hub from which they are downloaded, LoRA adapters and aliases."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from antiphon.domain.models import ADAPTER_NAME, STAR
from antiphon.errors import SettingsError
from antiphon.settings.server import GIB, KIB, PATH_MARK, PathText, describe

T = TypeVar("T")

LLAMA_ONLY = frozenset(
    {
        "bind_threads",
        "gpu_layers",
        "tensor_split",
        "exact",
        "kv_type",
        "layout",
        "step_latency",
        "weights",
        "load",
        "keep_alive",
        "drafts",
        "charge_rejected_predictions",
        "mmproj",
        "image_max_tokens",
        "image_min_tokens",
    }
)
VLLM_ONLY = frozenset({"interpreter", "dtype", "memory_share", "tensor_parallel"})
"""The settings of a model that act only on vLLM. `LLAMA_ONLY` act only on llama.cpp."""

REPOSITORY = r"^(\*|[A-Za-z0-9_.-]{1,96}/(\*|[A-Za-z0-9_.-]{1,96}))$"
"""A pattern for one repository, for all repositories of an owner, or for all repositories."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One local model. Write a table for each model, or repeat `--model`."""

    name: Annotated[str, Meta(description="Name that callers use.", min_length=1, max_length=200)]
    path: Annotated[
        str,
        Meta(
            extra=PATH_MARK,
            description="The GGUF file, hf:OWNER/REPO:FILE on the hub, smollm2 or minilm. For vLLM, the "
            "folder of weights.",
            min_length=1,
        ),
    ]
    sequences: Annotated[
        int, Meta(description="Answers that the model computes at once. Others wait.", ge=1, le=256)
    ] = 8
    context_length: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(
            description="Tokens of one prompt and its answer. None means the model's own, but at most 8192,"
            " if the memory allows."
        ),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="CPU threads. None chooses for the machine."),
    ] = None
    exact: Annotated[
        bool,
        Meta(
            description="Whether answers are equal to the last bit, alone and in a batch. This costs some "
            "speed."
        ),
    ] = False
    bind_threads: Annotated[
        bool,
        Meta(
            description="Whether each CPU thread stays on its core, if this is the server's only engine and "
            "its threads use all cores (engines.md)."
        ),
    ] = True
    gpu_layers: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=0)],
        Meta(
            description="Layers on GPUs, the last ones first (gpu.md). The output counts as a layer. auto "
            "means as many as fit, or none with exact. 0 keeps all on the processor."
        ),
    ] = "auto"
    devices: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="GPUs to use, as doctor names them (`CUDA0`), or for vLLM by number (`0`). None "
            "means all. Several hosts divide them in this order."
        ),
    ] = ()
    tensor_split: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1e6)], ...],
        Meta(
            description="Share of the layers of each GPU, such as 3, 1. None uses one GPU if the model "
            "fits, and otherwise divides by free memory."
        ),
    ] = ()
    kv_type: Annotated[Literal["f16", "f32"], Meta(description="Number format of the KV cache.")] = "f16"
    layout: Annotated[
        Literal["pool", "streams"],
        Meta(
            description="How the KV cache is divided. With streams each sequence has its own part; this is "
            "faster on processors. With a pool, prefixes are shared without copies, and long "
            "prompts need fewer cells. You cannot combine a pool with exact."
        ),
    ] = "streams"
    cells: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(
            description="Tokens in the KV cache, for all sequences. None means context_length for each, or "
            "as many as fit. With fewer, sequences of a pool wait, and those of streams are shorter."
        ),
    ] = None
    queue: Annotated[int, Meta(description="Choices that can wait. Others get a 503.", ge=0)] = 512
    queue_per_actor: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Choices of one caller that can wait. Others get a 429. None means 256 with keys. "
            "Without keys all callers are one, and can fill the queue."
        ),
    ] = None
    step_latency: Annotated[
        float,
        Meta(
            description="Seconds that each of up to four new prompts can take in a step while answers run. "
            "Less makes streams smoother. More makes first tokens earlier and the throughput higher. A "
            "step always computes at least 1280 prompt tokens for each of these seconds.",
            gt=0,
            le=60,
        ),
    ] = 0.1
    tool_calls: Annotated[
        Literal[
            "auto",
            "deepseek",
            "deepseek-markup",
            "gemma",
            "glm",
            "granite",
            "harmony",
            "hermes",
            "kimi",
            "llama",
            "minimax",
            "mistral",
            "mistral-headed",
            "phi",
            "python",
            "qwen-coder",
            "seed",
        ],
        Meta(description="How the model writes tool calls (tools.md). auto reads it from the chat template."),
    ] = "auto"
    reasoning: Annotated[
        Literal["auto", "none", "cohere", "gemma", "granite", "harmony", "mistral", "seed", "think"],
        Meta(
            description="How the model marks its reasoning (reasoning.md). auto reads it from the chat "
            "template. none leaves it in the text."
        ),
    ] = "auto"
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="Temperature of requests that set none. None means the model file's value, or 1."),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="top_p of requests that set none. None means the model file's value, or 1."),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="top_k of requests that set none. None means the model file's value, or no limit."),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="min_p of requests that set none. None means the model file's value, or 0."),
    ] = None
    weights: Annotated[
        Literal["auto", "memory", "file"],
        Meta(
            description="Where the weights are. memory is a copy, which is faster. file maps the file, so "
            "that servers share it. auto copies if all models together need at most half of "
            "the free memory."
        ),
    ] = "auto"
    load: Annotated[
        Literal["start", "request"],
        Meta(
            description="When the model is loaded: before the server accepts requests, or at the first "
            "request."
        ),
    ] = "start"
    keep_alive: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description='A model with load = "request" is unloaded after this many seconds without a '
            "request. None keeps it until another model needs its memory."
        ),
    ] = None
    keep_prefixes: Annotated[
        bool,
        Meta(
            description="Whether computed prompts stay in the cache, for later requests with the same "
            "beginning."
        ),
    ] = True
    drafts: Annotated[
        Literal["off", "auto", "always"],
        Meta(
            description="Whether the model computes probable next tokens together with the last one "
            "(predictions.md). off does so for the predictions of requests. auto also takes them from the "
            "sequence's own earlier tokens. Both do so only while it is faster; always does it at any cost."
        ),
    ] = "off"
    charge_rejected_predictions: Annotated[
        bool,
        Meta(
            description="Whether tokens of a prediction that were computed and are not in the answer count "
            "as completion tokens. OpenAI counts them so."
        ),
    ] = False
    mmproj: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            extra=PATH_MARK,
            description="GGUF file of the model's projector, with which it takes images: a path, or "
            "hf:OWNER/REPO:FILE on the hub. auto finds it beside the model's file, by `mmproj` in its name "
            "(media.md).",
        ),
    ] = None
    image_max_tokens: Annotated[
        int,
        Meta(
            description="Most tokens of one image, if the projector chooses by the image's size. The time to "
            "encode an image grows with their square.",
            ge=16,
            le=16384,
        ),
    ] = 1024
    image_min_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=16384)] | None,
        Meta(description="Fewest tokens of one image. None means the projector's own number."),
    ] = None
    engine: Annotated[
        Literal["llama", "vllm"],
        Meta(description="The engine: the embedded llama.cpp, or vLLM in its own environment."),
    ] = "llama"
    interpreter: Annotated[
        Annotated[PathText, Meta(min_length=1)] | None,
        Meta(description="Python of the environment with vLLM: .venvs/cluster/bin/python."),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Number format of vLLM. auto means that of the model's folder."),
    ] = "auto"
    memory_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Share of each device's memory that vLLM takes. None means vLLM's default. On a "
            "processor without it, `cells` sets the KV cache."
        ),
    ] = None
    tensor_parallel: Annotated[
        int, Meta(description="Devices over which vLLM splits each layer.", ge=1, le=64)
    ] = 1
    hosts: Annotated[
        int,
        Meta(
            description="Engine processes of this machine that serve the model, each with its own weights, "
            "sequences, queue and KV cache (routes.md).",
            ge=1,
            le=64,
        ),
    ] = 1
    cluster: Annotated[
        bool,
        Meta(
            description="Whether the model runs in the cluster, if there is one. If not, it runs on the "
            "server's machine."
        ),
    ] = True
    replicas: Annotated[
        int,
        Meta(description="Replicas in the cluster. With max_replicas, the smallest number.", ge=1, le=1000),
    ] = 1
    max_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Largest number of replicas in the cluster. A replica is added when there are more "
            "sequences than places. None means always `replicas`."
        ),
    ] = None
    replica_cpus: Annotated[
        Annotated[float, Meta(gt=0, le=1024)] | None,
        Meta(description="CPUs of each replica. None means its threads, or 1."),
    ] = None
    replica_gpus: Annotated[
        float,
        Meta(
            description="GPUs of each replica, all in one machine. With a fraction, replicas share a GPU.",
            ge=0,
            le=64,
        ),
    ] = 0.0
    replica_resources: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s=]+=[0-9]{1,6}(\.[0-9]{1,4})?$")], ...],
        Meta(description="Other resources of each replica, as NAME=NUMBER, with the names of the cluster."),
    ] = ()


def require_engine_settings(models: Iterable[ModelSettings]) -> None:
    """Raises SettingsError for a setting that does not act on the model's engine."""
    for model in models:
        ineffective = LLAMA_ONLY if model.engine == "vllm" else VLLM_ONLY
        for name in sorted(ineffective):
            if getattr(model, name) != MODEL_DEFAULTS[name]:
                raise SettingsError(
                    f"{name} has no effect on the model {model.name}, whose "
                    f"engine is {model.engine}; leave {name} out"
                )
        if model.engine == "vllm" and model.interpreter is None:
            raise SettingsError(
                f"the model {model.name} needs an environment with vLLM: run `make cluster`, then set "
                'interpreter = ".venvs/cluster/bin/python" in its table'
            )
        if model.mmproj is None:
            for name in ("image_max_tokens", "image_min_tokens"):
                if getattr(model, name) != MODEL_DEFAULTS[name]:
                    raise SettingsError(
                        f"{name} of the model {model.name} has no effect without mmproj; leave {name} out"
                    )
        elif model.image_min_tokens is not None and model.image_min_tokens > model.image_max_tokens:
            raise SettingsError(
                f"image_min_tokens of the model {model.name} is more than image_max_tokens, "
                f"{model.image_max_tokens}; lower one or raise the other"
            )
        if model.exact and model.layout == "pool":
            raise SettingsError(
                f'layout = "pool" of the model {model.name} has no effect with exact = true, which needs '
                "streams; leave layout or exact out"
            )
        if model.exact and model.drafts != "off":
            raise SettingsError(
                f"drafts of the model {model.name} are not possible with exact = true, because they change "
                "the last bits of an answer; leave drafts or exact out"
            )
        if model.memory_share is not None and model.cells is not None:
            raise SettingsError(
                f"cells of the model {model.name} has no effect beside memory_share, which gives vLLM's KV "
                "cache its size; leave cells or memory_share out"
            )


def list_host_names(model: ModelSettings) -> tuple[str, ...]:
    """Returns the names of a model's engine hosts: its own name, or NAME/1, NAME/2 for several."""
    if model.hosts == 1:
        return (model.name,)
    return tuple(f"{model.name}/{number}" for number in range(1, model.hosts + 1))


def group_hosts(models: Iterable[ModelSettings], hosts: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Groups engine hosts by the names of their models. `hosts`: by the host's name. A host of no model in
    `models` is a group of its own, with its own name."""
    owners = {name: model.name for model in models for name in list_host_names(model)}
    groups: dict[str, dict[str, T]] = {}
    for name, host in hosts.items():
        groups.setdefault(owners.get(name, name), {})[name] = host
    return groups


def choose_devices(model: ModelSettings, host: str | None) -> tuple[str, ...]:
    """Returns the devices of one host of a model. `host`: its name; None means the first host."""
    count = len(model.devices) // model.hosts
    start = 0 if host is None else list_host_names(model).index(host) * count
    return model.devices[start : start + count]


def require_hosts(models: Sequence[ModelSettings], other_names: Collection[str]) -> None:
    """Raises SettingsError for a model whose hosts cannot run as its settings demand, or have a name that is
    in use. `other_names`: the names of all routed models and adapters."""
    names = {*other_names, *(model.name for model in models)}
    for model in models:
        if (
            model.engine == "vllm"
            and model.devices
            and len(model.devices) != model.hosts * model.tensor_parallel
        ):
            raise SettingsError(
                f"devices of the model {model.name} must name {model.hosts * model.tensor_parallel} "
                f"devices: its {model.hosts} hosts, times tensor_parallel = {model.tensor_parallel}"
            )
        if model.hosts == 1:
            continue
        if model.load == "request":
            raise SettingsError(
                f'the model {model.name} has {model.hosts} hosts, and load = "request" allows only '
                "one; leave hosts or load out"
            )
        if len(model.devices) % model.hosts:
            raise SettingsError(
                f"the {model.hosts} hosts of the model {model.name} cannot share {len(model.devices)} "
                "devices evenly; name the same number of devices for each host"
            )
        if not model.devices and (model.memory_share or 0) * model.hosts > 1:
            raise SettingsError(
                f"the {model.hosts} hosts of the model {model.name} share all devices, and memory_share = "
                f"{model.memory_share:g} of each is more than there is; lower memory_share, or set devices"
            )
        if clash := next((name for name in list_host_names(model) if name in names), None):
            raise SettingsError(
                f"{clash!r} is the name of a host of the model {model.name}, and of "
                "another model or adapter; rename that model or adapter"
            )


def list_parked(models: Iterable[ModelSettings]) -> frozenset[str]:
    """Returns the names of the models with load = "request". Such a model is parked: not loaded, until a
    request uses it."""
    return frozenset(model.name for model in models if model.load == "request")


MODEL_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(ModelSettings)}
"""The default of each setting of a model."""


class HubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models from the hub: `--model hf:OWNER/REPO:FILE.gguf`."""

    cache: Annotated[
        PathText | None,
        describe(
            "ANTIPHON_HUB_CACHE",
            "Directory of fetched models. None means `models` in `ANTIPHON_HOME`, or the "
            "platform's cache directory.",
        ),
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        describe(
            "ANTIPHON_HUB_ENDPOINT",
            "Address of the hub. None means `HF_ENDPOINT`, or the public hub.",
            example="https://hub.example.org",
        ),
    ] = None
    offline: Annotated[
        bool,
        describe(
            "ANTIPHON_HUB_OFFLINE", "Whether to never ask the hub. Then only fetched models are served."
        ),
    ] = False


class LoraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LoRA adapters (adapters.md): their sources and their storage."""

    directories: Annotated[
        tuple[PathText, ...],
        describe(
            "ANTIPHON_LORA_DIRECTORIES",
            "Directories from which callers can load adapters while the server runs. If there is "
            "none, nobody can load adapters from files.",
        ),
    ] = ()
    repositories: Annotated[
        tuple[Annotated[str, Meta(pattern=REPOSITORY)], ...],
        describe(
            "ANTIPHON_LORA_REPOSITORIES",
            "Repositories of the hub from which callers can deploy adapters: OWNER/REPO, "
            "OWNER/*, or * for all.",
        ),
    ] = ()
    registry: Annotated[
        PathText | None,
        describe(
            "ANTIPHON_LORA_REGISTRY",
            "Directory in which adapters are kept by digest. None means `adapters` in "
            "`ANTIPHON_HOME`, or in the platform's data directory.",
        ),
    ] = None
    memory_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_LORA_MEMORY_BYTES",
            "Bytes of adapters that each engine keeps in memory. Others are read again when they are used.",
        ),
        Meta(ge=0),
    ] = GIB
    max_bytes: Annotated[
        int,
        describe("ANTIPHON_LORA_MAX_BYTES", "Largest file of an adapter that a caller can load, in bytes."),
        Meta(ge=KIB),
    ] = GIB
    keep_names: Annotated[
        bool,
        describe(
            "ANTIPHON_LORA_KEEP_NAMES",
            "Whether adapters that callers loaded are served again after a restart.",
        ),
    ] = True
    project_adapters: Annotated[
        int,
        describe(
            "ANTIPHON_LORA_PROJECT_ADAPTERS",
            "Adapters that the service keys of one project can load from the repositories. 0 means "
            "that only the operator can load adapters.",
        ),
        Meta(ge=0, le=2048),
    ] = 0
    project_bytes: Annotated[
        int,
        describe("ANTIPHON_LORA_PROJECT_BYTES", "Bytes of all adapters of one project."),
        Meta(ge=KIB),
    ] = 4 * GIB


class AdapterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter that is served from the start. Write a table for each, repeat `--lora NAME=PATH`, or
    list them in `ANTIPHON_ADAPTERS` with commas between."""

    name: Annotated[
        str, Meta(description="Name that callers use as model.", pattern=f"^{ADAPTER_NAME.pattern}$")
    ]
    path: Annotated[
        str,
        Meta(description="A GGUF adapter, or a directory as PEFT saves it.", min_length=1, extra=PATH_MARK),
    ]
    model: Annotated[
        str | None,
        Meta(description="Name of the base model. Needed if there are several."),
    ] = None


def assign_models(
    adapters: Sequence[AdapterSettings],
    models: Sequence[ModelSettings],
    embedding_models: Collection[str] | None = (),
) -> tuple[AdapterSettings, ...]:
    """Returns the adapters, each with the name of its model. Raises SettingsError.

    `embedding_models`: the names of the embedding models, which have no adapters. None: it is not known yet
    which models these are. In this case, with several models, an adapter that names no model still names
    none.
    """
    names = [model.name for model in models]
    used_names = set(names)
    for adapter in adapters:
        if adapter.name in used_names:
            raise SettingsError(
                f"two models or adapters are named {adapter.name!r}; give "
                "one of them another name with --lora NAME=PATH"
            )
        used_names.add(adapter.name)
    is_undecided = embedding_models is None and len(names) > 1
    return tuple(
        adapter
        if is_undecided and adapter.model is None
        else _assign_model(adapter, names, embedding_models or ())
        for adapter in adapters
    )


def _assign_model(
    adapter: AdapterSettings, models: Sequence[str], embedding_models: Collection[str]
) -> AdapterSettings:
    """Returns the adapter with the name of its model. Raises SettingsError if there is no such model."""
    bases = [model for model in models if model not in embedding_models]
    base_names = ", ".join(bases)
    if not bases or adapter.model in embedding_models:
        base = adapter.model or models[0]
        raise SettingsError(
            f"the adapter {adapter.name} cannot be served: {base} is an embedding model, and these have no "
            "adapters; leave the adapter out, or serve the model that it was made for"
        )
    if adapter.model is None and len(bases) == 1:
        return msgspec.structs.replace(adapter, model=bases[0])
    if adapter.model is None:
        raise SettingsError(
            f"there are several models ({base_names}); name the model of the adapter {adapter.name}: "
            'model = "..." in its [[adapters]] table'
        )
    if adapter.model not in models:
        raise SettingsError(
            f"the adapter {adapter.name} is for the model {adapter.model!r}, which is not served; "
            f"this server has: {base_names}"
        )
    return adapter


class AliasSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another name of a model, or a pattern of names. Write a table for each, repeat `--alias NAME=MODEL`,
    or list them in `ANTIPHON_ALIASES` with commas between. A model's own name comes before aliases, and a
    name before patterns. A longer pattern comes before a shorter one. The last one is built in:
    `accounts/fireworks/models/*` means the model `*`."""

    name: Annotated[
        str,
        Meta(
            description="Name that callers send as model. One `*` in it matches any characters but `#`.",
            min_length=1,
            max_length=256,
        ),
    ]
    model: Annotated[
        str,
        Meta(
            description="Name of the model or adapter. A `*` in it stands for the text that the name's `*` "
            "matched.",
            min_length=1,
            max_length=256,
        ),
    ]


def require_aliases(aliases: Sequence[AliasSettings], served_names: Collection[str], is_fixed: bool) -> None:
    """Raises SettingsError for an alias whose model does not exist, or that no caller can use.

    `served_names`: the names of models and adapters. `is_fixed`: whether these names cannot change while the
    server runs, because no adapter can be added.
    """
    names = [alias.name for alias in aliases]
    for index, alias in enumerate(aliases):
        name, model = alias.name, alias.model
        if name in names[:index]:
            raise SettingsError(f"two aliases are named {name!r}; leave one of them out")
        if name.count(STAR) > 1 or model.count(STAR) > name.count(STAR):
            raise SettingsError(
                f"the alias {name!r} of {model!r} must have at most one {STAR}, and its model can have one "
                "only if the name has one"
            )
        if name in served_names:
            raise SettingsError(
                f"the alias {name!r} is the name of a model or adapter; give the alias another name"
            )
        if model in names and model not in served_names:
            raise SettingsError(f"the alias {name!r} leads to the alias {model!r}; name the model itself")
        if is_fixed and STAR not in model and model not in served_names:
            available = ", ".join(served_names)
            raise SettingsError(
                f"the alias {name!r} leads to {model!r}, which is not served; this server has: {available}"
            )
