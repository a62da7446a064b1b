"""Fields of every request that has a conversation rendered: what they do, in one place."""

from collections.abc import Mapping
from types import MappingProxyType

RENDERED: Mapping[str, str] = MappingProxyType(
    {
        "add_generation_prompt": "Whether the assistant's turn is opened after the messages; true by "
        "default.",
        "continue_final_message": "Whether the last message, the assistant's, is left open and the model "
        "goes on with it; its text is not repeated. Not together with add_generation_prompt.",
        "chat_template": "A Jinja template in the place of the model's, at most 100,000 characters; rendered "
        "in a process of its own within two seconds of processor time and 256 MB. Taken where the operator "
        "has set `request_templates`, else refused.",
        "chat_template_kwargs": "Values by name for the template, at most 64. One that it does not read, and "
        "one that the server sets itself, is refused.",
        "documents": "Objects to answer from, for a template that reads documents; else refused.",
    }
)
