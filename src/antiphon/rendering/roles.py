"""Who may speak in a template, found by trying: what it knows as another role, and what it would refuse or
drop, is said as it takes it. Nothing that a caller wrote is left out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation

INSTRUCTING = frozenset((Role.SYSTEM, Role.DEVELOPER))
"""Roles that say what the model shall do."""

FIRST, SECOND = "probe_first", "probe_second"
_USER, _ASSISTANT = Message(Role.USER, "probe"), Message(Role.ASSISTANT, "probe")
ALONE = Conversation((Message(Role.SYSTEM, FIRST), _USER))
SEVERAL = Conversation((Message(Role.SYSTEM, FIRST), Message(Role.SYSTEM, SECOND), _USER))
LATER = Conversation((Message(Role.SYSTEM, FIRST), _USER, _ASSISTANT, Message(Role.SYSTEM, SECOND), _USER))
FIRST_OF_ALL = Conversation((Message(Role.DEVELOPER, FIRST), _USER))
BESIDE = (
    Conversation((Message(Role.SYSTEM, FIRST), Message(Role.DEVELOPER, SECOND), _USER)),
    Conversation((Message(Role.SYSTEM, FIRST), _USER, _ASSISTANT, Message(Role.DEVELOPER, SECOND), _USER)),
)
"""What a template is asked, to see what of it is in the prompt."""

Shows = Callable[[Conversation, str], bool]
"""Whether a text of a conversation is in its prompt."""


@dataclass(frozen=True, slots=True)
class RoleSupport:
    """What a template does with system messages."""

    developer: bool = True
    """Whether it shows one who speaks first under that name; else a developer is the system."""
    beside: bool = True
    """Whether it shows one after others have spoken under that name."""
    system: bool = True
    """Whether it shows a system message at all."""
    several: bool = True
    """Whether it shows more than one at the beginning."""
    later: bool = True
    """Whether it shows one after others have spoken."""

    def adapt(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The same conversation as the template takes it: system messages that it would not show stand in
        the first one, in their order, with an empty line between."""
        if not any(message.role in INSTRUCTING for message in messages):
            return messages
        named = 0 if not self.developer else len(messages) if self.beside else 1
        messages = (*messages[:named], *map(_as_system, messages[named:]))
        if not self.system or (self.several and self.later):
            return messages
        begin = next((at for at, each in enumerate(messages) if each.role not in INSTRUCTING), len(messages))
        leading, others = messages[:begin], messages[begin:]
        if not self.later:
            leading += tuple(message for message in others if message.role in INSTRUCTING)
            others = tuple(message for message in others if message.role not in INSTRUCTING)
        return (*(leading if self.several else _merge_leading(leading)), *others)

    def drops_system(self, messages: tuple[Message, ...]) -> bool:
        """Whether the template drops what a system message says, without a word."""
        return not self.system and any(message.role in INSTRUCTING for message in messages)


def probe_roles(source: str, shows: Shows) -> RoleSupport:
    """What a template does, told by what it shows."""
    return RoleSupport(
        developer="developer" in source and shows(FIRST_OF_ALL, FIRST),
        beside="developer" in source and all(shows(asked, SECOND) for asked in BESIDE),
        system=shows(ALONE, FIRST),
        several=shows(SEVERAL, FIRST) and shows(SEVERAL, SECOND),
        later=shows(LATER, FIRST) and shows(LATER, SECOND),
    )


def _as_system(message: Message) -> Message:
    return replace(message, role=Role.SYSTEM) if message.role is Role.DEVELOPER else message


def _merge_leading(leading: tuple[Message, ...]) -> tuple[Message, ...]:
    """One message of the first one's role."""
    if len(leading) < 2:
        return leading
    return (Message(leading[0].role, "\n\n".join(message.text for message in leading)),)
