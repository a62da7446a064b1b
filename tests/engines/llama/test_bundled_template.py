"""The bundled model's template is proved here, so that a start needs no process for it."""

from collections.abc import Mapping

from antiphon.domain.values import replace
from antiphon.rendering.model_info import load_info
from antiphon.rendering.template.chat_template import PROVED, digest_proof, prove
from antiphon_testing import ScriptedTokenEngine
from tests.engines.llama.conftest import loaded
from tests.support.model_files import CANTOR


async def test_the_bundled_models_template_is_proved_once_and_another_at_each_load() -> None:
    proofs: list[Mapping[str, object]] = []

    async def note(proof: Mapping[str, object]) -> None:
        proofs.append(proof)

    async with loaded(CANTOR) as engine:
        assert (await load_info(engine, note, None)).template is not None
        assert proofs == []
        info, vocabulary = await engine.info(), await engine.vocabulary()
    assert info.chat_template is not None
    changed = replace(info, chat_template=info.chat_template + " ")
    await load_info(ScriptedTokenEngine(info=changed, vocabulary=vocabulary), note, None)
    (proof,) = proofs
    bundled = {**proof, "template": info.chat_template}
    prove(bundled)
    assert {digest_proof(bundled)} == PROVED
