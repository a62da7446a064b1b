"""The generation request: everything a caller can ask for, in one frozen value that knows no dialect."""

from dataclasses import dataclass, field

from antiphon.domain.constraint import Constraint
from antiphon.domain.messages import Message
from antiphon.domain.sampling import AskedSampling
from antiphon.domain.tools import Tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt made of messages, rendered by the model's chat template."""

    messages: tuple[Message, ...]
    generation_prompt: bool = True
    """Whether the assistant's header is opened at the end."""
    tools: Tools | None = None
    """What the model is shown and may call."""


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that is used as it is: text (may hold control tokens) or the token ids themselves."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None


Prompt = Conversation | RawPrompt


@dataclass(frozen=True, slots=True)
class Output:
    """What comes back, and when it ends."""

    max_tokens: int | None = None
    """Cap on completion tokens of each choice; None is what is left of the context; 0 only with `echo`."""
    choices: int = 1
    """Completions of each prompt (`n`)."""
    stop: tuple[str, ...] = ()
    """Texts that end a choice; cut from its text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice, besides the model's own."""
    best_of: int | None = None
    """Candidates of each prompt, of which the `choices` with the highest mean log-probability are given;
    None makes no more than `choices`."""
    echo: bool = False
    """Whether a choice's text begins with the prompt."""
    constraint: Constraint | None = None
    """What each choice must look like; kept, or refused before a token is made."""
    logprobs: int | None = None
    """None: none. 0: of the tokens that are given, with `echo` the prompt's too. k: and of the k likeliest
    alternatives of each."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call. With several prompts, choice `i` of prompt `p` has index `p * output.choices + i`."""

    model: str
    prompts: tuple[Prompt, ...]
    sampling: AskedSampling = field(default_factory=AskedSampling)
    output: Output = field(default_factory=Output)
    cache_salt: str = ""
    """Prompts share what is kept of them only under an equal salt, within the caller's project."""
