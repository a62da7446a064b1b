"""The generation request: everything a caller can ask for, in one frozen value that knows no dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon.domain.constraint import Constraint
from antiphon.domain.messages import Message
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.tools import Tools
from antiphon.domain.values import Value


class Overflow(StrEnum):
    """What becomes of a request whose prompt and `max_tokens` together pass the context length."""

    ERROR = "error"
    """It is refused."""
    SHORTEN = "shorten"
    """`max_tokens` is lowered to what is left; a prompt that leaves no room is refused all the same."""


class Truncation(StrEnum):
    """At which end a prompt is cut."""

    LEFT = "left"
    """The last tokens are kept."""
    RIGHT = "right"
    """The first tokens are kept."""


@dataclass(frozen=True, slots=True)
class ReasoningTerms:
    """What a dialect calls what its callers ask of reasoning; errors speak so."""

    effort: str = "reasoning_effort"
    """The field of the effort."""
    budget: str = "thinking_token_budget"
    """The field of the budget."""
    off: str = "none"
    on: str = "medium"
    least: int = 0
    """The smallest budget."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model that reasons shall do before it answers."""

    effort: str | None = None
    """`none`, `minimal`, `low`, `medium`, `high`, ...; None is the model's own way. Given to the template."""
    budget: int | None = None
    """Most tokens of reasoning, after which it is made to end; None is what max_tokens leaves."""
    shown: bool = True
    """Whether the reasoning is given; it is counted either way."""
    wanted: bool = False
    """Whether it is refused where the model does not reason."""
    terms: ReasoningTerms = field(default=ReasoningTerms(), compare=False)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt made of messages, rendered by the model's chat template."""

    messages: tuple[Message, ...]
    generation_prompt: bool = True
    """Whether the assistant's header is opened at the end."""
    tools: Tools | None = None
    """What the model is shown and may call."""
    continues: bool = False
    """Whether the last message is left open and the model goes on with it; not with `generation_prompt`."""
    template: str | None = None
    """A template of the request's own, in the place of the model's; None is the model's."""
    template_values: Mapping[str, object] = field(default_factory=dict)
    """Further values that the template reads."""
    documents: tuple[Mapping[str, object], ...] | None = None
    """Texts to answer from, for a template that reads some."""
    add_special: bool | None = None
    """Whether the model's begin token stands before what the template writes, unless it begins with that:
    None where the model wants one."""
    reasoning: Reasoning = field(default_factory=Reasoning)


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that is used as it is: text (may hold control tokens) or the token ids themselves."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    add_special: bool = True
    """Whether a text gets the model's begin token."""


Prompt = Conversation | RawPrompt


class Output(Value, frozen=True):
    """What comes back, and when it ends."""

    max_tokens: int | None = None
    """Cap on completion tokens of each choice; None is what is left of the context; 0 only with `echo`."""
    choices: int = 1
    """Completions of each prompt (`n`)."""
    stop: tuple[str, ...] = ()
    """Texts that end a choice."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice, besides the model's own."""
    best_of: int | None = None
    """Candidates of each prompt, of which the `choices` with the highest mean log-probability are given;
    None makes no more than `choices`."""
    echo: bool = False
    """Whether a choice's text begins with the prompt; of a conversation with its last message, which has to
    be the assistant's."""
    constraint: Constraint | None = None
    """What each choice must look like; kept, or refused before a token is made."""
    logprobs: int | None = None
    """None: none. 0: of the tokens that are given, with `echo` the prompt's too. k: and of the k likeliest
    alternatives of each. -1: and of all tokens of the vocabulary."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens whose log-probabilities are given at each place that is generated, in the place of the
    likeliest; needs `logprobs`."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the prompt's tokens, whether or not they are echoed."""
    bad_words: tuple[str, ...] = ()
    """Texts that no choice holds as their tokens."""
    show_special: bool = False
    """Whether control tokens show as their names."""
    token_ids: bool = False
    """Whether the ids of prompt and completion are given too."""
    truncate_prompt: int | None = None
    """Keeps only so many of the prompt's tokens; -1 as many as leave room for `max_tokens`, or for one; None
    keeps all."""
    truncation: Truncation = Truncation.LEFT
    """Where it is cut."""
    include_stop: bool = False
    """Whether the text that ended a choice stays in it; else it is cut."""
    overflow: Overflow = Overflow.ERROR
    is_usual: bool = False
    """Whether `max_tokens` is what the dialect takes where its caller says none."""


class GenerationRequest(Value, frozen=True):
    """One call. With several prompts, choice `i` of prompt `p` has index `p * output.choices + i`."""

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingOptions = SamplingOptions()
    output: Output = Output()
    cache_salt: str = ""
    """Prompts share what is kept of them only under an equal salt, within the caller's project."""
    priority: int = 0
    """Lower is admitted earlier, among what waits of one actor."""
