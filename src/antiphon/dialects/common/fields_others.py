"""Fields of the endpoints beside generation: embeddings, token ids, adapters."""

from antiphon.dialects.common.field_scopes import APPLY, DETOKENIZE, EMBEDDINGS, LOAD, TOKENIZE, UNLOAD
from antiphon.dialects.common.field_table import END_USER, Field, refused, supported
from antiphon.dialects.common.fields_templates import RENDERED

OTHERS: tuple[Field, ...] = (
    *supported(
        TOKENIZE,
        prompt="A text as /v1/completions takes it.",
        messages="A conversation, instead of a prompt.",
        add_special_tokens="Whether the prompt gets the model's begin token: a text by default, a "
        "conversation by default where the model wants one and the template writes none.",
        tools="What the model is shown as tools; only with messages.",
        **RENDERED,
    ),
    *supported(
        APPLY,
        messages="The conversation.",
        tools="What the model is shown as tools.",
        **RENDERED,
    ),
    *supported(
        EMBEDDINGS,
        model="Name of an embedding model of /v1/models.",
        input="A text, a list of texts, token ids, or a list of lists of them, at most 2048. A text gets "
        "what the model wants before and after it, and nothing in it is a control token; token ids stay as "
        "they are. Nothing is shortened.",
        encoding_format="float, numbers; or base64, their bytes as float32, little-endian.",
        dimensions="Taken only where it is what the model makes: no vector is shortened.",
    ),
    *supported(TOKENIZE, return_token_strs="Whether the text of each token is given too."),
    *supported(DETOKENIZE, tokens="The token ids."),
    *supported(
        TOKENIZE | APPLY | DETOKENIZE, model="Name of a model; may be left out when there is only one."
    ),
    *supported(
        LOAD,
        lora_path="A GGUF adapter, or a directory as PEFT saves it, on the server: in one of the directories "
        "that the setting lora.directories names, absolute or relative to one of them.",
        load_inplace="Whether it takes the place of an adapter of the same name with other content, which is "
        "else an error.",
        base_model_name="The model that it adapts; may be left out when there is only one.",
    ),
    *supported(LOAD | UNLOAD, lora_name="The name that callers use as model."),
    *supported(EMBEDDINGS, user=END_USER),
    refused("truncate_prompt_tokens", EMBEDDINGS, "a text is never shortened; shorten it before sending"),
    refused("add_special_tokens", EMBEDDINGS, "send token ids to have them read as they are", True),
    refused("normalize", EMBEDDINGS, "vectors always have the length 1; leave it out", True),
    refused("priority", EMBEDDINGS, "requests are served in turn; leave it out", 0),
    refused("is_3d_lora_weight", LOAD, "experts are not adapted here; leave it out", False),
    refused("lora_int_id", UNLOAD, "adapters are known by their names; leave it out"),
)
