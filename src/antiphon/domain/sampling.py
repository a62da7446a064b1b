"""Sampling of the next token: the caller's options, and the engine's values.

ARCHITECTURE.md ("Semantics") defines the order: masks (allowed tokens, minimum length), logit bias
and penalties, then temperature, then min-p, top-k, top-p, typical-p, or Mirostat instead of these four.
Temperature 0 is greedy over the penalised logits. Each draw depends on hash(seed, choice, position) alone.
"""

from antiphon.domain.values import Struct, Value


class Mirostat(Struct, frozen=True):
    """Sampling that steers the surprise of each token towards a target (Basu and others, 2020)."""

    target: float = 1.5
    """The target of the surprise in bits (the paper's tau)."""
    rate: float = 0.1
    """The learning rate of the threshold (the paper's eta)."""
    version: int = 2
    """2 cuts by surprise; 1 estimates a top-k from Zipf's law."""


class Sampling(Struct, frozen=True):
    """The sampling values that an engine gets. Every option has a value."""

    temperature: float = 1.0
    """0 is greedy; at most 2 by the dialects' ranges."""
    top_p: float = 1.0
    """Only the smallest set of tokens whose probability reaches this can be drawn; 1 allows all tokens."""
    top_k: int = 0
    """Only the k likeliest tokens can be drawn; 0 allows all tokens."""
    min_p: float = 0.0
    """Only tokens at least this fraction as likely as the likeliest can be drawn; 0 allows all tokens."""
    seed: int = 0
    """Any 64-bit integer; equal seeds give equal draws."""
    typical_p: float = 1.0
    """Only the most typical tokens whose probability reaches this can be drawn (Meister and others, 2022); 1
    allows all tokens."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 does nothing."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these tokens."""
    mirostat: Mirostat | None = None
    """Replaces min-p, top-k, top-p and typical-p."""
    min_tokens: int = 0
    """Tokens before which no end-of-generation and no stop token may be drawn."""
    ignore_eos: bool = False
    """The model's end tokens are drawn like any other and do not end the sequence."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens can be drawn; None allows all."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the output never contains. If the output ends with all tokens of a sequence
    except its last one, the last one cannot be drawn. The prompt is not part of the output."""


class SamplingOptions(Value, frozen=True):
    """Sampling options of the caller or of a model's profile. None means that the option is not set."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    mirostat: Mirostat | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: tuple[int, ...] | None = None

    def build_sampling(self, defaults: "SamplingOptions", seed: int) -> Sampling:
        """Returns the sampling values of a request. For an option that is not set here, takes the value of
        `defaults`, which is the model's profile. If it has none, takes the default of `Sampling`. `seed`: the
        seed for a request without one."""
        options = {
            name: own_value if (own_value := getattr(self, name)) is not None else getattr(defaults, name)
            for name in self.__struct_fields__
        }
        set_options = {name: value for name, value in options.items() if value is not None}
        return Sampling(**({"seed": seed} | set_options))
