"""What can be set of one local model. `antiphon.settings` has the rest, and reads them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One local model. Several are given as a list of tables in the file, or by repeating `--model`."""

    name: Annotated[str, Meta(description="Name that callers use.", min_length=1, max_length=200)]
    path: Annotated[str, Meta(description="The GGUF file, or hf:OWNER/REPO:FILE on the hub.", min_length=1)]
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
    kv_type: Annotated[Literal["f16", "f32"], Meta(description="Number format of the KV cache.")] = "f16"
    layout: Annotated[
        Literal["pool", "streams"],
        Meta(
            description="How the KV cache is laid out: in streams each sequence has its own part, which is "
            "faster on processors; in a pool prefixes are shared without copying and long prompts run beside "
            "short ones with fewer cells. exact implies streams."
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
    keep_prefixes: Annotated[
        bool, Meta(description="Keep computed prompts in free cells, for later requests that begin alike.")
    ] = True


USUAL = {field.name: field.default for field in msgspec.structs.fields(ModelSettings)}
"""What each setting of a model is when nobody says it."""
