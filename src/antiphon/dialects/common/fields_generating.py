"""Fields of the two generating endpoints."""

from antiphon.dialects.common.field_scopes import BOTH, CHAT, STREAM, TEXT
from antiphon.dialects.common.field_table import END_USER, TAGS, Field, ignored, refused, supported
from antiphon.dialects.common.fields_templates import RENDERED

LEGACY = "OpenAI took its place by tools; send tools"
MEDIA = "only text is taken in and given out"
WIDTH = "at most 20 unless the operator set ANTIPHON_MAX_LOGPROBS; -1 asks for the whole vocabulary"
STORE = "nothing is stored here; leave it out"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"

GENERATING: tuple[Field, ...] = (
    *supported(
        CHAT,
        messages="The conversation so far.",
        max_completion_tokens="The newer name of max_tokens.",
        logprobs="Whether each token's log-probability is given, in the model's raw distribution: before "
        "bias, penalties, temperature and cuts.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether it calls: auto, none, required, one tool by its name, or allowed_tools.",
        parallel_tool_calls="Whether one turn may make several calls; true by default.",
        **RENDERED,
        add_special_tokens="Whether the model's begin token stands before what the template writes, unless "
        "that begins with it. Left out: where the model wants one.",
        echo="Whether the answer begins with the text of the last message, which has to be the assistant's: "
        "with continue_final_message the whole of what is gone on with.",
        top_logprobs=f"How many of the likeliest tokens are given at each place, {WIDTH}; only together "
        "with logprobs.",
    ),
    *supported(
        TEXT,
        prompt="A text, a list of texts, token ids, or a list of lists of them. May hold control tokens. An "
        "empty text, or none, means the model's begin token, or its end token where it has no begin token.",
        logprobs="Gives each token's log-probability in the model's raw distribution (before bias, "
        f"penalties, temperature and cuts), and so many of the likeliest tokens at its place, {WIDTH}.",
        add_special_tokens="Whether a text gets the begin token that the model wants; true by default. Token "
        "ids stay as they are.",
        echo="Whether the text begins with the prompt, as it was sent; with logprobs its tokens are scored "
        "too, and with max_tokens 0 nothing else is done.",
    ),
    *supported(
        BOTH,
        model="Name of a model of /v1/models.",
        max_tokens="Most tokens of one choice; a chat may else use the rest of the context, a text makes "
        "16, and takes 0 with echo.",
        temperature="0 is greedy; the model's own default, else 1.",
        top_p="Smallest set of tokens whose probability reaches this; the model's own default, else 1.",
        top_k="The k likeliest tokens; 0 or -1 keeps all.",
        min_p="Tokens at least this fraction as likely as the likeliest; 0 keeps all.",
        typical_p="The most typical tokens whose probability reaches this; 1 keeps all.",
        presence_penalty="Taken from the logit of each token that is in the output, -2 to 2.",
        frequency_penalty="Taken from a token's logit for each time it is in the output, -2 to 2.",
        repetition_penalty="Divides positive and multiplies negative logits of tokens in prompt or output; "
        "above 0, at most 2; 1 does nothing.",
        logit_bias="Added to the logits of tokens: an object of token ids, as texts, to numbers of -100 to "
        "100.",
        mirostat_target="Surprise in bits that each token is steered to (Mirostat, version 2); 1.5 when only "
        "mirostat_lr is sent. Takes the place of min_p, top_k, top_p and typical_p.",
        mirostat_lr="How fast Mirostat follows; 0.1 when only mirostat_target is sent.",
        min_tokens="Tokens of a choice before which nothing ends it but max_tokens.",
        ignore_eos="Whether the model's end tokens are drawn like others and end nothing.",
        allowed_token_ids="The only token ids that can be drawn.",
        seed="The same seed gives the same draws.",
        n="Choices of each prompt.",
        stop="Texts that end a choice, at most four; cut from its text.",
        stop_token_ids="Token ids that end a choice, besides the model's own; their text is no part of it.",
        include_stop_str_in_output="Whether the stop text, or the stop token's text, that ended a choice "
        "stays at its end.",
        skip_special_tokens="false shows control tokens in the text as their names, and stop texts may then "
        "match them; the one that ends the turn only together with include_stop_str_in_output.",
        best_of="Makes so many candidates, at most 20, and gives the n with the highest mean "
        "log-probability per token, best first; all are counted. Not in a stream. 0 means absent.",
        prompt_logprobs="Gives the log-probability and the rank of each of the prompt's tokens, and so many "
        f"of the likeliest at its place, {WIDTH}: in a chat beside the choices, in a text in each. Not in "
        "a stream.",
        logprob_token_ids="Token ids, at most 128, whose log-probabilities are given at each place that is "
        "generated, beside the token itself. They take the place of the likeliest. Only together with "
        "logprobs.",
        return_token_ids="Whether the ids of the prompt's tokens, and of each choice's, are given too.",
        return_tokens_as_token_ids="Whether log-probabilities call tokens token_id:ID; only together with "
        "logprobs.",
        truncate_prompt_tokens="Keeps only so many of the prompt's tokens, the last ones unless "
        "truncation_side says otherwise; -1 keeps what leaves room for max_tokens.",
        truncation_side="left cuts the prompt at its beginning and keeps its last tokens, as by default; "
        "right keeps the first. Only together with truncate_prompt_tokens.",
        stream="Whether the answer comes as server-sent events.",
        stream_options="How a stream ends; only together with stream.",
        bad_words="Words that no choice holds, at most 128: the tokens of each, as it stands at a text's "
        "beginning and after a space, are not drawn one after the other. The same letters by other tokens "
        "are not looked for.",
        priority="Lower is admitted earlier, among what waits of the same caller; callers take turns "
        "whatever they say.",
        cache_salt="What is kept of a prompt is shared only with requests of the same project and salt.",
    ),
    *supported(
        BOTH,
        response_format="text; json_object, any object or one of `schema`; json_schema, JSON of a schema. "
        "The model is shown none of it: x-antiphon-ignored names the schema's name and description.",
        guided_json="A JSON Schema, as an object or a text, that each choice satisfies.",
        guided_regex="A regular expression that matches the whole of each choice.",
        guided_choice="Texts, one of which each choice is.",
        guided_grammar="A grammar in Lark's or llama.cpp's notation (GBNF) of each choice.",
        guided_whitespace_pattern="With JSON: what may stand, once or not at all, wherever JSON takes "
        "whitespace, as [ \\n]{0,2}; nothing else may.",
        structured_outputs="One of json, regex, choice, grammar, json_object, and with JSON "
        "whitespace_pattern: vLLM's newer form of guided_*. With nothing in it it is refused, as vLLM does.",
    ),
    *supported(
        STREAM,
        include_usage="Whether one more chunk, with empty choices, brings the usage.",
        continuous_usage_stats="Whether each chunk brings the usage so far, of all choices together; only "
        "together with include_usage.",
    ),
    *supported(BOTH, user=END_USER, metadata=TAGS),
    *supported(CHAT, safety_identifier=f"The newer name of user. {END_USER}"),
    ignored(
        "prompt_cache_key",
        CHAT,
        "a hint where a kept prefix may be; every request finds the longest one here by itself",
    ),
    refused("suffix", TEXT, "completion of a middle is not built yet; leave it out", ""),
    refused("functions", CHAT, LEGACY, []),
    refused("function_call", CHAT, LEGACY, "none", "auto"),
    refused("modalities", CHAT, MEDIA, ["text"]),
    refused("audio", CHAT, MEDIA),
    refused("prediction", CHAT, "predicted outputs are not built yet; leave it out"),
    refused("verbosity", CHAT, "say in a message how long the answer shall be", "medium"),
    refused("store", CHAT, STORE, False),
    refused("service_tier", CHAT, "there is one tier; leave it out", "auto", "default"),
    refused("web_search_options", CHAT, HOSTED),
    refused("moderation", CHAT, HOSTED),
    refused("prompt_cache_options", CHAT, HOSTED, {}),
    refused("prompt_cache_retention", CHAT, HOSTED, "in_memory"),
    refused("include_obfuscation", STREAM, "streams are not padded; leave it out", False),
    refused("length_penalty", BOTH, "it ranks beams, and beam search is not built; leave it out", 1),
    refused("use_beam_search", BOTH, "beam search is not built; leave it out", False),
    refused(
        "spaces_between_special_tokens",
        BOTH,
        "a text is what its tokens' pieces join to, and nothing is taken from it; leave it out",
        True,
    ),
    refused("logits_processors", BOTH, "code is never taken from a request; leave it out", []),
)
