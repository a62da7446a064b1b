"""Which notation a model has for calls, told by its chat template."""

from collections.abc import Callable

from antiphon.rendering.toolcalls.layout import Layout
from antiphon.rendering.toolcalls.reading import ObjectReader

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes(source: str) -> Layout:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen, cantor. There is a line break
    between the tags and the object, unless the template writes none."""
    compact = f"{OPEN}{{" in source
    line = "" if compact else "\n"
    return Layout(
        open=(OPEN,),
        before=(line + '{"name": "',),
        after=('", "arguments": ',),
        end=("}" + line,),
        close=(CLOSE,),
        again=("\n",),
        reader=lambda: ObjectReader(OPEN, CLOSE),
    )


FAMILIES: dict[str, Callable[[str], Layout]] = {"hermes": hermes}


def layout_of(source: str) -> Layout:
    """The notation of a template; Hermes' for one that knows no tools, as it is then shown that."""
    return hermes(source)
