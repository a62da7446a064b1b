"""Functions that a model may call, which of them it may or must, and the calls it makes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OPEN_KEYWORDS = frozenset(
    "additionalProperties patternProperties unevaluatedProperties allOf anyOf oneOf extends if "
    "dependencies dependentSchemas $ref $dynamicRef $recursiveRef".split()
)
"""Keywords beside `properties` that may speak of others."""

PROPERTY_KEYWORDS = frozenset(
    "required minProperties patternProperties propertyNames unevaluatedProperties dependentRequired "
    "dependentSchemas enum const not if".split()
)
"""Keywords by which a schema that declares no properties speaks of some."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as the caller describes it."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    """The JSON Schema of its arguments, as the model is shown it; None takes none."""
    strict: bool = False
    """Whether every keyword of the schema has to be kept; else those that cannot be are left out."""
    kept: Mapping[str, object] | None = field(default=None, compare=False)
    """The schema less what was left out; None is `parameters`."""
    field: str = field(default="tools", compare=False)
    """What the caller calls the schema; errors name it."""

    @property
    def schema(self) -> Mapping[str, object]:
        """What arguments satisfy: an object always, and one with no other properties than those that are
        declared, if any, unless the schema speaks of others."""
        if self.parameters is None:
            return {"type": "object", "additionalProperties": False}
        said = self.kept if self.kept is not None else self.parameters
        given = self.parameters
        asks = not given.get("properties") and any(given.get(name) for name in PROPERTY_KEYWORDS)
        closed = given.keys().isdisjoint(OPEN_KEYWORDS) and not asks
        return {"type": "object"} | dict(said) | ({"additionalProperties": False} if closed else {})


class ToolChoice(StrEnum):
    """Whether the model calls."""

    NONE = "none"
    """It is shown the tools, and calls none."""
    AUTO = "auto"
    """As it likes."""
    REQUIRED = "required"
    """It calls, and says nothing else."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of one conversation."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = ToolChoice.AUTO
    parallel: bool = True
    """Whether one turn may make several calls."""
    allowed: frozenset[str] | None = None
    """Names of those that may be called; None is all. The others are only shown."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Those that may be called."""
        if self.choice is ToolChoice.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.allowed is None or tool.name in self.allowed)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model made."""

    id: str
    """By which its result refers to it."""
    name: str
    arguments: str
    """JSON, or the beginning of it where the text was cut."""
