"""A model's chat template: converts a conversation to pieces of text, with only the model's own control
tokens.

A template comes with the weights, so it is an untrusted program. `prove` runs it on sample conversations in a
process that can be killed. A template that passes runs here (`environment`). This module tokenizes nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import NoReturn

import jinja2
from jinja2 import meta, nodes

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import TextPiece
from antiphon.errors import InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon.rendering.call_notation import CallNotation, detect_notation
from antiphon.rendering.reasoning import ReasoningNotation, detect_reasoning, effort_variables
from antiphon.rendering.template.environment import BoundedEnvironment, limit_render_time, watch_messages
from antiphon.rendering.template.messages import (
    Hide,
    add_tools_to_system,
    build_message,
    build_tools,
    hide_texts,
    measure,
    with_parts,
    with_reasoning_part,
)
from antiphon.rendering.template.shield import (
    Cover,
    Shield,
    TemplateTexts,
    escape_surrogates,
    is_valid_unicode,
    use_cover,
)
from antiphon.rendering.template.support import (
    CUT,
    PROBE,
    PROBE_CALL,
    PROBE_CUT_CALL,
    PROBE_KEY,
    PROBE_REASONING,
    PROBE_SYSTEM,
    PROBE_TEXT,
    PROBE_TOOLS,
    PROBE_VALUE,
    RESULT,
    RoleSupport,
    TemplateSupport,
    number_calls,
    probe_roles,
    write_out_tools,
)

LONGEST_SOURCE = 500_000
"""The most characters of a template. The longest known template has 30,000."""

LONGEST_PROMPT = 4_000_000
"""The most characters of a rendered prompt, not counting four characters for each character of the
conversation."""

LONGEST_DATE = 200
"""Characters of a date format."""

FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors that a template can raise, because it is a program."""

SAMPLES = (
    Conversation((Message(Role.USER, "Hello there"),)),
    Conversation((Message(Role.USER, "Hello there"),), generation_prompt=False),
    Conversation(
        (
            Message(Role.SYSTEM, "Be brief."),
            Message(Role.USER, "Hello <there> & \"you\" | [INST] 'all' {{ x }} {% y %}"),
            Message(Role.ASSISTANT, "Hi <think>hm</think>\n\n"),
            Message(Role.USER, " 😀 日本語 "),
        )
    ),
    Conversation(tuple(Message((Role.USER, Role.ASSISTANT)[turn % 2], "word " * 200) for turn in range(101))),
)
"""The conversations that `prove` renders. The template must render the first one. It may refuse the others
with `raise_exception`."""

FULL_SUPPORT = TemplateSupport(shows_tools=True, shows_calls=True, shows_results=True)
"""Support for everything. No tool is written as text."""

PROVED = frozenset({"7d7c7d9f8e73e2a4a2f499570c7e1188d0826f7eec97cce3ace03a88aba1c8d9"})
"""Digests of proofs that the tests make: of the bundled model's template. A start needs no process for it."""

SERVER_VARIABLES = frozenset(
    "messages tools documents add_generation_prompt continue_final_message bos_token eos_token "
    "raise_exception strftime_now dict namespace cycler joiner range "
    "self super loop caller varargs kwargs".split()
)
"""Variables that a request cannot set, because the server or jinja2 sets them."""

MOST_LISTED = 20
"""The most variables of a template that an error message lists."""

REASSEMBLING = frozenset(("format", "format_map", "replace"))
"""Filters and methods that put a text into the middle of another."""


class RaisedByTemplate(TemplateRefused):
    """The template called `raise_exception` to refuse a conversation."""


class SpecialTokens(Struct, frozen=True):
    """The special tokens that a template needs."""

    names: tuple[str, ...]
    """Texts of the control tokens."""
    bos: str = ""
    eos: str = ""


class NotationFamilies(Struct, frozen=True):
    """The families of a model's notations. None means that the template's text decides."""

    calls: str | None = None
    reasoning: str | None = None


BY_TEMPLATE = NotationFamilies()


class ChatTemplate:
    """A compiled template. The constructor and `render` raise TemplateRefused. Any thread may use it."""

    def __init__(
        self,
        source: str,
        special: SpecialTokens,
        families: NotationFamilies = BY_TEMPLATE,
        probe_source: Conversation = SAMPLES[0],
    ) -> None:
        """`probe_source`: a conversation. The probes of the template use its template values and
        documents."""
        if len(source) > LONGEST_SOURCE:
            raise TemplateRefused(f"the chat template has more than {LONGEST_SOURCE} characters")
        self._special = special
        self._probe_source = probe_source
        environment = BoundedEnvironment()
        try:
            tree = environment.parse(source)
            self._shield = Shield(special.names, _collect_literals(tree))
            self._own_variables = frozenset(
                node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"
            )
            # The next call changes the tree, so it comes last.
            self.read_variables = frozenset(meta.find_undeclared_variables(tree))
            """Variables that the template reads but does not set."""
            self._template = environment.from_string(source)
        except FAILURES as error:
            raise _convert_error("cannot be compiled", error) from None
        self._support = FULL_SUPPORT
        self._reads_parts = self._reads_reasoning_part = False
        self._roles = RoleSupport(shows_developer="developer" in source)
        self.call_notation: CallNotation = detect_notation(source, families.calls)
        """How the model writes calls."""
        self.reasoning_notation: ReasoningNotation | None = detect_reasoning(source, families.reasoning)
        """How the model writes reasoning; None if the model does not reason."""
        self._reads_parts = not self._shows(PROBE_TEXT, RESULT) and self._probe_parts()
        """Whether the template reads content as a list of parts."""
        self._reads_reasoning_part = self.reasoning_notation is not None and self._probe_reasoning_part(
            self.reasoning_notation
        )
        """Whether the template reads reasoning as a part of the content."""
        self._roles = probe_roles(source, self._shows)
        self._support = self._probe_support()

    def render(self, conversation: Conversation, clock: Clock) -> tuple[TextPiece, ...]:
        """Renders the prompt. Only the template's own texts can become control tokens."""
        self._require_known_variables(conversation)
        loses_system = self._roles.drops_system(conversation.messages)
        conversation = replace(conversation, messages=self._roles.adapt(conversation.messages))
        conversation = write_out_tools(conversation, self._support, self.call_notation)
        if self.call_notation.numbers_calls:
            conversation = number_calls(conversation)
        texts, size = measure(conversation)
        cover = self._shield.cover(texts)
        variables = self._build_variables(conversation, cover, clock)
        with limit_render_time(), use_cover(cover):
            rendered = _require_valid("".join(self._render_pieces(variables, LONGEST_PROMPT + 4 * size)))
        if loses_system:
            raise TemplateRefused(
                "the chat template shows no system message; put its text into the user's message",
                param="messages",
            )
        if conversation.continues:
            rendered = cut_after_message(rendered, conversation.messages[-1].text, cover)
        return cover.split_pieces(rendered)

    def _require_known_variables(self, conversation: Conversation) -> None:
        """Raises InvalidValue for a variable that the server sets, and UnsupportedParameter for a variable
        that the template does not read."""
        for name in conversation.template_values:
            field = f"chat_template_kwargs.{name}"
            if name in SERVER_VARIABLES:
                raise InvalidValue(
                    f"{field} is set by the server from the request's own fields; leave it out", param=field
                )
            if name not in self.read_variables:
                variables = (
                    ", ".join(
                        sorted(self.read_variables - self._own_variables - SERVER_VARIABLES)[:MOST_LISTED]
                    )
                    or "none"
                )
                raise UnsupportedParameter(
                    f"{field} is not supported: the chat template reads no such variable; it reads: "
                    f"{variables}",
                    param=field,
                )
        if conversation.documents is not None and "documents" not in self.read_variables:
            raise UnsupportedParameter(
                "documents is not supported: the chat template reads none; write them into a message",
                param="documents",
            )

    def _build_variables(self, conversation: Conversation, cover: Cover, clock: Clock) -> dict[str, object]:
        """Returns the values of the template's variables."""
        messages = [self._build_message(message, cover.hide) for message in conversation.messages]
        shown_tools = conversation.tools.shown if conversation.tools is not None else ()
        tools = build_tools(shown_tools, cover) or None
        if tools and self.call_notation.tools_in_system:
            messages = add_tools_to_system(messages, tools)
        if conversation.continues:
            messages[-1]["content"] = f"{messages[-1]['content'] or ''}{cover.end_mark}"
        documents = conversation.documents
        return {
            "messages": watch_messages(
                [self._adapt_content(message) for message in messages], self._reads_reasoning_part
            ),
            "add_generation_prompt": conversation.generation_prompt,
            "continue_final_message": conversation.continues,
            "bos_token": self._special.bos,
            "eos_token": self._special.eos,
            "raise_exception": _build_raise_exception(cover.restore),
            "strftime_now": _build_strftime_now(clock),
            "tools": tools,
            "documents": None if documents is None else hide_texts(list(documents), cover.hide_value),
        } | {
            name: hide_texts(value, cover.hide_value)
            for name, value in self._choose_values(conversation).items()
        }

    def _choose_values(self, conversation: Conversation) -> Mapping[str, object]:
        """Returns the template's variables that the request sets by name or by its reasoning effort. Raises
        InvalidValue if they contradict each other."""
        values, reasoning = conversation.template_values, conversation.reasoning
        derived = effort_variables(reasoning, self.read_variables, self.reasoning_notation)
        for name in derived.keys() & values.keys():
            if derived[name] != values[name]:
                field = reasoning.field_names.effort
                raise InvalidValue(
                    f"{field} and chat_template_kwargs.{name} contradict each other; send one of them",
                    param=field,
                )
        return {**derived, **values}

    def _probe_support(self) -> TemplateSupport:
        """Finds out which parts of tools the template shows, by rendering test conversations."""
        as_text = replace(FULL_SUPPORT, reads_objects=False)
        arguments = self.call_notation.spell_argument(PROBE_KEY, PROBE_VALUE)
        calls = self._shows(PROBE_CALL, arguments)
        self._support = FULL_SUPPORT if calls else as_text
        calls = calls or self._shows(PROBE_CALL, arguments)
        return TemplateSupport(
            shows_tools=self._shows(PROBE_TOOLS, PROBE.name),
            shows_calls=calls,
            shows_results=calls and self._shows(PROBE_CALL, RESULT),
            reads_objects=self._support.reads_objects,
            shows_invalid_arguments=calls and self._shows(PROBE_CUT_CALL, CUT),
            accepts_system=self._shows(PROBE_SYSTEM, RESULT),
        )

    def _adapt_content(self, message: dict[str, object]) -> dict[str, object]:
        """Returns the message with its content in the form that the template reads."""
        if self._reads_reasoning_part and "reasoning" in message:
            return with_reasoning_part(message)
        return with_parts(message) if self._reads_parts else message

    def _probe_reasoning_part(self, notation: ReasoningNotation) -> bool:
        """Probes whether the template shows reasoning that is a part of the content. Sets
        `_reads_reasoning_part`."""
        self._reads_reasoning_part = True
        return self._shows(PROBE_REASONING, notation.opening + RESULT)

    def _probe_parts(self) -> bool:
        """Probes whether the template shows content that is a list of parts. Sets `_reads_parts`."""
        self._reads_parts = True
        return self._shows(PROBE_TEXT, RESULT)

    def _shows(self, conversation: Conversation, text: str) -> bool:
        """Renders the conversation, and returns whether the prompt contains the text. Returns False if the
        template refuses the conversation."""
        values = {
            name: value
            for name, value in self._probe_source.template_values.items()
            if name in self.read_variables
        }
        documents = self._probe_source.documents if "documents" in self.read_variables else None
        conversation = replace(conversation, template_values=values, documents=documents)
        try:
            pieces = self.render(conversation, SystemClock())
        except TemplateRefused:
            return False
        return text in "".join(piece.text for piece in pieces)

    def _build_message(self, message: Message, hide: Hide) -> dict[str, object]:
        """Returns a message in the form that the template reads. `hide` is applied to the caller's texts."""
        return build_message(
            message, message.role, hide, self._support.reads_objects, self.call_notation.short_ids
        )

    def _render_pieces(self, variables: Mapping[str, object], max_length: int) -> Iterator[str]:
        """Yields the template's output piece by piece, up to `max_length` characters."""
        try:
            for piece in self._template.root_render_func(self._template.new_context(dict(variables))):
                max_length -= len(piece)
                if max_length < 0:
                    raise TemplateRefused(
                        "the chat template writes too long a prompt; send fewer or shorter messages"
                    )
                yield piece
        except FAILURES as error:
            raise _convert_error("failed on these messages", error) from None


def cut_after_message(rendered: str, text: str, cover: Cover) -> str:
    """Returns the prompt up to the end of its last message, whose text contains the cover's mark. Raises
    UnsupportedParameter if the template changes or repeats that text."""
    text_before_mark, mark, text_after_mark = rendered.partition(cover.end_mark)
    stripped_text = text.lstrip()
    if (
        not mark
        or cover.end_mark in text_after_mark
        or cover.restore(text_before_mark[len(text_before_mark) - len(stripped_text) :]) != stripped_text
    ):
        raise UnsupportedParameter(
            "continue_final_message is not supported for this message: the chat template rewrites it, so "
            "there is no place where the model could go on with it",
            param="continue_final_message",
        )
    return text_before_mark


def prove(payload: Mapping[str, object]) -> None:
    """Compiles a template and renders samples with it, as a job of the sandbox. Raises TemplateRefused.

    The payload comes from `build_proof`.
    """
    names = payload["names"]
    if not isinstance(names, Sequence):
        raise TypeError("names is a list of texts")
    special = SpecialTokens(tuple(map(str, names)), str(payload["bos"]), str(payload["eos"]))
    template = ChatTemplate(str(payload["template"]), special)
    for index, sample in enumerate(SAMPLES):
        try:
            template.render(sample, SystemClock())
        except RaisedByTemplate:
            if index == 0:
                raise


def build_proof(source: str, special: SpecialTokens) -> dict[str, object]:
    """Builds the payload of `prove`."""
    return {"template": source, "names": special.names, "bos": special.bos, "eos": special.eos}


def digest_proof(payload: Mapping[str, object]) -> str:
    return sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def _collect_literals(tree: nodes.Template) -> TemplateTexts:
    """Collects a template's own texts. Also detects whether the template cuts its literals or inserts texts
    into other texts, so that it can form texts that are no literals."""
    template_data = tuple(node.data for node in tree.find_all(nodes.TemplateData))
    constants = tuple(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    filters = (node.name for node in tree.find_all(nodes.Filter))
    methods = (node.attr for node in tree.find_all(nodes.Getattr))
    cuts_literals = any(isinstance(node.node, nodes.Const) for node in tree.find_all(nodes.Getitem))
    inserts_texts = not REASSEMBLING.isdisjoint(filters) or not REASSEMBLING.isdisjoint(methods)
    literals = frozenset(constants) | {node.attr for node in tree.find_all(nodes.Getattr)}
    return TemplateTexts(template_data + constants, constants, cuts_literals or inserts_texts, literals)


# These are closures, because a template can inspect an object that it calls. A `partial` would show its
# arguments.


def _build_raise_exception(restore: Hide) -> Callable[[object], NoReturn]:
    """Returns the function that templates call to refuse a conversation. `restore`: replaces twins in the
    message by the original characters (`shield`)."""

    def raise_exception(message: object) -> NoReturn:
        """Raises RaisedByTemplate with the template's message."""
        reason = escape_surrogates(restore(str(message))[:500])
        raise RaisedByTemplate(f"the chat template refuses these messages: {reason}", param="messages")

    return raise_exception


def _build_strftime_now(clock: Clock) -> Callable[[str], str]:
    """Returns the function that templates call to write the date."""

    def strftime_now(date_format: str) -> str:
        """Formats the date in UTC, because the server's time zone is private."""
        if len(date_format) > LONGEST_DATE:
            raise TemplateRefused("the chat template asks for too long a date")
        return datetime.fromtimestamp(clock.wall(), UTC).strftime(date_format)

    return strftime_now


def _require_valid(text: str) -> str:
    """Returns the text. Raises TemplateRefused for a lone surrogate, which a template's literals can
    write."""
    if not is_valid_unicode(text):
        raise TemplateRefused("the chat template writes half of a surrogate pair, which is no character")
    return text


def _convert_error(failure: str, error: BaseException) -> TemplateRefused:
    """Converts an error of a template to TemplateRefused. `failure`: what the template did, in words. The
    error's text can name Python objects, but contains no memory address and no path."""
    reason = escape_surrogates(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return TemplateRefused(f"the chat template {failure} ({reason})", param="messages")
