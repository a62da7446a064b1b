"""Prepares a request on one route, without the optional parameters and documents that the route's engine
lacks."""

from antiphon.domain.context import Context
from antiphon.domain.messages import MediaKind
from antiphon.domain.request import Conversation, GenerationRequest, Prompt, SamplingOptions
from antiphon.domain.values import replace
from antiphon.engines.base import Engine, PreparedRequest
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.documents import DocumentTexts


async def prepare(
    engine: Engine, request: GenerationRequest, context: Context, documents: DocumentTexts | None = None
) -> PreparedRequest:
    """Prepares the request, and records in its report which optional parameters were removed. Writes the
    texts of documents into the messages if the engine takes no documents. Raises UnsupportedParameter for a
    parameter that is not optional, or another RequestError."""
    removed_names: tuple[str, ...] = ()
    while True:
        try:
            prepared = await engine.prepare(request, context)
        except UnsupportedParameter as error:
            if error.modality == MediaKind.DOCUMENT and documents is not None:
                request = await documents.write_into(request, context.actor, context.clock)
                continue
            name = error.param or ""
            if name not in request.optional:
                raise
        else:
            prepared.report.ignored += removed_names
            return prepared
        request, removed_names = remove_parameter(request, name), (*removed_names, name)


def remove_parameter(request: GenerationRequest, name: str) -> GenerationRequest:
    """Returns the request without one of its optional parameters."""
    request = replace(request, optional=request.optional - {name})
    if name in SamplingOptions.__struct_fields__:
        return replace(request, sampling=replace(request.sampling, **{name: None}))
    if name == "stop":
        return replace(request, output=replace(request.output, stop=()))
    if name == "verbosity":
        return replace(request, vendor_options=replace(request.vendor_options, verbosity=None))
    prompts: list[Prompt] = []
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            reasoning = prompt.reasoning
            if name == reasoning.field_names.effort:
                reasoning = replace(reasoning, effort=None, is_required=False)
            elif name == reasoning.field_names.budget:
                reasoning = replace(reasoning, budget=None)
            prompts.append(replace(prompt, reasoning=reasoning))
        else:
            prompts.append(prompt)
    return replace(request, prompts=tuple(prompts))
