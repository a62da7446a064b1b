"""A model's chat template: converts a conversation to pieces of text, with only the model's own control
tokens.

A template comes with the weights, so it is an untrusted program. `prove` runs it on sample conversations in a
process that can be killed. A template that passes runs here (`environment`). This module tokenizes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

import jinja2
from jinja2 import meta, nodes

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.engines.base import TextPiece
from antiphon.errors import InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon.rendering.reasoning.notation import ReasoningNotation, detect_reasoning, effort_variables
from antiphon.rendering.template.environment import BoundedEnvironment, limit_render_time
from antiphon.rendering.template.field_usage import watch_messages
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
    PROBE_REASONING,
    PROBE_SYSTEM,
    PROBE_TEXT,
    PROBE_TOOLS,
    RESULT,
    RoleSupport,
    TemplateSupport,
    probe_roles,
    write_out_tools,
)
from antiphon.rendering.tools.call_notation import CallNotation, detect_notation

LONGEST_SOURCE = 500_000
"""The most characters of a template. The longest known template has 30,000."""

LONGEST_PROMPT = 4_000_000
"""The most characters of a rendered prompt, plus four for each character of the conversation."""

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

FULL_SUPPORT = TemplateSupport(tools=True, calls=True, results=True)
"""Support for everything. No tool is written as text."""

SET_HERE = frozenset(
    "messages tools documents add_generation_prompt continue_final_message bos_token eos_token "
    "raise_exception strftime_now dict namespace cycler joiner range "
    "self super loop caller varargs kwargs".split()
)
"""Variables that a request cannot set: those of the server and of jinja2."""

MOST_NAMED = 20
"""The most variables of a template that an error message lists."""

REASSEMBLING = frozenset(("format", "format_map", "replace"))
"""Filters and methods that put a text into the middle of another."""


class RaisedByTemplate(TemplateRefused):
    """The template called `raise_exception` to refuse a conversation."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens that a template needs."""

    names: tuple[str, ...]
    """Texts of the control tokens."""
    bos: str = ""
    eos: str = ""


@dataclass(frozen=True, slots=True)
class NotationFamilies:
    """The families of a model's notations. For None, the family is found in the template."""

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
        like: Conversation = SAMPLES[0],
    ) -> None:
        """`like`: a conversation whose template values and documents are used for probes of the template."""
        if len(source) > LONGEST_SOURCE:
            raise TemplateRefused(f"the chat template has more than {LONGEST_SOURCE} characters")
        self._special = special
        self._like = like
        environment = BoundedEnvironment()
        try:
            tree = environment.parse(source)
            self._shield = Shield(special.names, _collect_literals(tree))
            self._sets = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "store")
            # The next call changes the tree, so it comes last.
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            """Variables that the template reads but does not set."""
            self._template = environment.from_string(source)
        except FAILURES as error:
            raise _convert_error("cannot be compiled", error) from None
        self._support = FULL_SUPPORT
        self._parts = self._has_reasoning_part = False
        """Whether the template reads reasoning as a part of the content. Set only while it is probed."""
        self._roles = RoleSupport(developer="developer" in source)
        self.call_notation: CallNotation = detect_notation(source, families.calls)
        """How the model writes calls."""
        self.reasoning_notation: ReasoningNotation | None = detect_reasoning(source, families.reasoning)
        """How the model writes reasoning; None if the model does not reason."""
        self._parts = not self._shows(PROBE_TEXT, RESULT) and self._shows_parts()
        """Whether the template reads content as a list of parts."""
        self._has_reasoning_part = self.reasoning_notation is not None and self._shows_has_reasoning_part(
            self.reasoning_notation
        )
        """Whether the template reads reasoning as a part of the content."""
        self._roles = probe_roles(source, self._shows)
        self._support = self._probe_support()

    def render(self, conversation: Conversation, clock: Clock) -> tuple[TextPiece, ...]:
        """Renders the prompt. Only the template's own texts can become control tokens."""
        self._require_read(conversation)
        loses_system = self._roles.drops_system(conversation.messages)
        conversation = replace(conversation, messages=self._roles.adapt(conversation.messages))
        conversation = write_out_tools(conversation, self._support, self.call_notation)
        texts, size = measure(conversation)
        cover = self._shield.cover(texts)
        variables = self._build_variables(conversation, cover, clock)
        with limit_render_time(), use_cover(cover):
            rendered = _require_valid("".join(self._render_pieces(variables, LONGEST_PROMPT + 4 * size)))
        if loses_system:
            raise TemplateRefused(
                "the chat template shows no system message; say it in the user's", param="messages"
            )
        if conversation.continues:
            rendered = cut_after_message(rendered, conversation.messages[-1].text, cover)
        return cover.split_pieces(rendered)

    def _require_read(self, conversation: Conversation) -> None:
        """Raises InvalidValue for values that the server itself sets, and UnsupportedParameter for values
        that the template does not read."""
        for name in conversation.template_values:
            field = f"chat_template_kwargs.{name}"
            if name in SET_HERE:
                raise InvalidValue(
                    f"{field} is set by the server from the request's own fields; leave it out", param=field
                )
            if name not in self.reads:
                variables = ", ".join(sorted(self.reads - self._sets - SET_HERE)[:MOST_NAMED]) or "none"
                raise UnsupportedParameter(
                    f"{field} is not supported: the chat template reads no such variable; it reads: "
                    f"{variables}",
                    param=field,
                )
        if conversation.documents is not None and "documents" not in self.reads:
            raise UnsupportedParameter(
                "documents is not supported: the chat template reads none; write them into a message",
                param="documents",
            )

    def _build_variables(self, conversation: Conversation, cover: Cover, clock: Clock) -> dict[str, object]:
        """Returns the values of the template's variables."""
        messages = [self._build_message(message, cover.hide) for message in conversation.messages]
        tools = build_tools(conversation.tools.tools, cover.hide) if conversation.tools else None
        if tools and self.call_notation.in_system:
            messages = add_tools_to_system(messages, tools)
        if conversation.continues:
            messages[-1]["content"] = f"{messages[-1]['content'] or ''}{cover.mark}"
        documents = conversation.documents
        return {
            "messages": watch_messages(
                [self._adapt_content(message) for message in messages], self._has_reasoning_part
            ),
            "add_generation_prompt": conversation.generation_prompt,
            "continue_final_message": conversation.continues,
            "bos_token": self._special.bos,
            "eos_token": self._special.eos,
            "raise_exception": _raise_exception(cover.restore),
            "strftime_now": _strftime_now(clock),
            "tools": tools,
            "documents": None if documents is None else hide_texts(list(documents), cover.hide_value),
        } | {
            name: hide_texts(value, cover.hide_value)
            for name, value in self._choose_values(conversation).items()
        }

    def _choose_values(self, conversation: Conversation) -> Mapping[str, object]:
        """Returns the variables that the request sets: by name, and by its reasoning effort. Raises a
        RequestError."""
        values, reasoning = conversation.template_values, conversation.reasoning
        derived = effort_variables(reasoning, self.reads, self.reasoning_notation)
        for name in derived.keys() & values.keys():
            if derived[name] != values[name]:
                field = reasoning.terms.effort
                raise InvalidValue(
                    f"{field} and chat_template_kwargs.{name} say different things; send one of them",
                    param=field,
                )
        return {**derived, **values}

    def _probe_support(self) -> TemplateSupport:
        """Finds out which parts of tools the template shows, by rendering test conversations."""
        as_text = replace(FULL_SUPPORT, objects=False)
        calls = self._shows(PROBE_CALL, PROBE.arguments)
        self._support = FULL_SUPPORT if calls else as_text
        calls = calls or self._shows(PROBE_CALL, PROBE.arguments)
        return TemplateSupport(
            tools=self._shows(PROBE_TOOLS, PROBE.name),
            calls=calls,
            results=calls and self._shows(PROBE_CALL, RESULT),
            objects=self._support.objects,
            texts=calls and self._shows(PROBE_CUT_CALL, CUT),
            system=self._shows(PROBE_SYSTEM, RESULT),
        )

    def _adapt_content(self, message: dict[str, object]) -> dict[str, object]:
        """Returns the message with its content in the form that the template reads."""
        if self._has_reasoning_part and "reasoning" in message:
            return with_reasoning_part(message)
        return with_parts(message) if self._parts else message

    def _shows_has_reasoning_part(self, notation: ReasoningNotation) -> bool:
        """Probes whether the template shows reasoning that is a part of the content. Sets
        `_has_reasoning_part`."""
        self._has_reasoning_part = True
        return self._shows(PROBE_REASONING, notation.opening + RESULT)

    def _shows_parts(self) -> bool:
        """Probes whether the template shows content that is a list of parts. Sets `_parts`."""
        self._parts = True
        return self._shows(PROBE_TEXT, RESULT)

    def _shows(self, conversation: Conversation, text: str) -> bool:
        """Whether the rendered conversation contains the text. A refused conversation contains nothing."""
        values = {name: value for name, value in self._like.template_values.items() if name in self.reads}
        documents = self._like.documents if "documents" in self.reads else None
        conversation = replace(conversation, template_values=values, documents=documents)
        try:
            pieces = self.render(conversation, SystemClock())
        except TemplateRefused:
            return False
        return text in "".join(piece.text for piece in pieces)

    def _build_message(self, message: Message, hide: Hide) -> dict[str, object]:
        """Returns a message in the form that the template reads, with the caller's texts covered."""
        return build_message(message, message.role, hide, self._support.objects, self.call_notation.short_ids)

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
    before, mark, after = rendered.partition(cover.mark)
    stripped = text.lstrip()
    if not mark or cover.mark in after or cover.restore(before[len(before) - len(stripped) :]) != stripped:
        raise UnsupportedParameter(
            "continue_final_message is not supported for this message: the chat template rewrites it, so "
            "there is no place where the model could go on with it",
            param="continue_final_message",
        )
    return before


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


def _collect_literals(tree: nodes.Template) -> TemplateTexts:
    """Collects a template's own texts. Also finds out whether the template can join texts in ways that the
    literals do not show."""
    data = tuple(node.data for node in tree.find_all(nodes.TemplateData))
    constants = tuple(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    filters = (node.name for node in tree.find_all(nodes.Filter))
    methods = (node.attr for node in tree.find_all(nodes.Getattr))
    cuts = any(isinstance(node.node, nodes.Const) for node in tree.find_all(nodes.Getitem))
    fills = not REASSEMBLING.isdisjoint(filters) or not REASSEMBLING.isdisjoint(methods)
    literals = frozenset(constants) | {node.attr for node in tree.find_all(nodes.Getattr)}
    return TemplateTexts(data + constants, constants, cuts or fills, literals)


# These are closures, because a template can inspect an object that it calls. A `partial` would show its
# arguments.


def _raise_exception(show: Hide) -> Callable[[object], NoReturn]:
    """Returns the function that templates call to refuse a conversation. `show`: uncovers covered
    text."""

    def raise_exception(message: object) -> NoReturn:
        """Raises RaisedByTemplate with the template's message."""
        reason = escape_surrogates(show(str(message))[:500])
        raise RaisedByTemplate(f"the chat template refuses these messages: {reason}", param="messages")

    return raise_exception


def _strftime_now(clock: Clock) -> Callable[[str], str]:
    """Returns the function that templates call to write the date."""

    def strftime_now(form: str) -> str:
        """Formats the date in UTC, because the server's time zone is private."""
        if len(form) > LONGEST_DATE:
            raise TemplateRefused("the chat template asks for too long a date")
        return datetime.fromtimestamp(clock.wall(), UTC).strftime(form)

    return strftime_now


def _require_valid(text: str) -> str:
    """Returns the text. Raises TemplateRefused for a lone surrogate, which a template's literals can
    write."""
    if not is_valid_unicode(text):
        raise TemplateRefused("the chat template writes half of a surrogate pair, which is no character")
    return text


def _convert_error(what: str, error: BaseException) -> TemplateRefused:
    """Converts a template's error. The message can name Python objects, but contains no address and no
    path."""
    reason = escape_surrogates(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return TemplateRefused(f"the chat template {what} ({reason})", param="messages")
