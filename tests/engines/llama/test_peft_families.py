"""Adapters from PEFT compute in llama.cpp what PEFT computes, for every family that the converter knows.

Recorded by models/adapters/record.py with random weights; nothing here needs torch.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import Library, find_library
from antiphon.engines.llama.libllama.model import NativeAdapter, NativeModel, set_adapter
from antiphon.weights.adapter_import import read_adapter
from antiphon.weights.convert.peft import REORDERED, SAME_ORDER, convert_peft
from antiphon.weights.gguf import Header, read_header
from models.adapters.base import write_base

RECORDED = Path(__file__).parents[2] / "fixtures" / "adapters"
SAID: dict[str, Any] = json.loads((RECORDED / "logits.json").read_text("utf-8"))
FAMILIES: dict[str, Any] = SAID["families"]
CASES = [(family, adapter) for family, found in FAMILIES.items() for adapter in found["adapters"]]
CLOSE, CLOSE_GELU = 1e-4, 2e-3
"""Of logits of about 3. llama.cpp reads Gemma's GELU from a table of half precision."""
APART = 1.0
"""How far an adapter at least moves some logit."""

Logits = NDArray[np.float32]


class Base:
    """A recorded base in the library."""

    def __init__(self, family: str, folder: Path, library: Library) -> None:
        path = folder / f"{family}.gguf"
        write_base(RECORDED / family / "base", path)
        self.header: Header = read_header(path)
        self.model = NativeModel(library, path, False)
        self.close = CLOSE_GELU if family.startswith("gemma") else CLOSE

    def logits(self, adapter: Path | None = None, scale: float = 1.0) -> Logits:
        """Of the token after the prompt."""
        native = NativeAdapter(self.model, adapter) if adapter else None
        shape = ContextSizes(
            cells=64, sequences=1, rows=16, micro_rows=16, threads=1, unified=True, flash=False, kv_type="f32"
        )
        context = NativeContext(self.model, shape)
        try:
            assert set_adapter(self.model.library.call, context.pointer, native, scale) == 0
            prompt = SAID["prompt"]
            context.set_rows(0, prompt, 0, 0, True)
            assert context.decode(len(prompt)) == DecodeStatus.DONE
            return np.array(context.read_logits(1)[0], dtype=np.float32)
        finally:
            context.close()
            if native:
                native.close()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Base]]:
    """Bases by family, each made when first asked for."""
    library, _ = find_library(None)
    folder, made = tmp_path_factory.mktemp("bases"), dict[str, Base]()

    def base(family: str) -> Base:
        if family not in made:
            made[family] = Base(family, folder, library)
        return made[family]

    yield base
    for each in made.values():
        each.model.close()


def apart(one: Logits, other: Logits | list[float]) -> float:
    return float(np.abs(one - np.asarray(other)).max())


@pytest.mark.parametrize(("family", "name"), CASES)
def test_an_adapter_computes_what_peft_computes(
    bases: Callable[[str], Base], tmp_path: Path, family: str, name: str
) -> None:
    base, recorded = bases(family), FAMILIES[family]
    convert_peft(RECORDED / family / name, base.header, tmp_path / "adapter.gguf")
    assert apart(base.logits(), recorded["base"]) < base.close
    adapted = base.logits(tmp_path / "adapter.gguf")
    assert apart(adapted, recorded["adapters"][name]) < base.close
    assert apart(adapted, recorded["base"]) > APART


def test_every_architecture_that_the_converter_knows_is_recorded(bases: Callable[[str], Base]) -> None:
    assert {bases(family).header.architecture for family in FAMILIES} == REORDERED | SAME_ORDER


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_scale_of_the_switch_multiplies_the_alpha(
    bases: Callable[[str], Base], tmp_path: Path, family: str
) -> None:
    base, doubled = bases(family), tmp_path / "doubled"
    doubled.mkdir()
    for file in (RECORDED / family / "all").iterdir():
        (doubled / file.name).write_bytes(file.read_bytes())
    said = json.loads((doubled / "adapter_config.json").read_text())
    said["lora_alpha"] *= 2
    (doubled / "adapter_config.json").write_text(json.dumps(said))
    convert_peft(RECORDED / family / "all", base.header, tmp_path / "once.gguf")
    convert_peft(doubled, base.header, tmp_path / "twice.gguf")
    twice = base.logits(tmp_path / "twice.gguf")
    assert apart(base.logits(tmp_path / "once.gguf", scale=2.0), twice) < base.close
    assert apart(base.logits(tmp_path / "once.gguf"), twice) > APART
    assert apart(base.logits(tmp_path / "once.gguf", scale=0.0), base.logits()) < base.close


def test_rank_and_alpha_stay_what_peft_said(bases: Callable[[str], Base], tmp_path: Path) -> None:
    base = bases("qwen2")
    convert_peft(RECORDED / "qwen2" / "all", base.header, tmp_path / "adapter.gguf")
    found = read_adapter(tmp_path / "adapter.gguf", base.header)
    assert (found.rank, found.alpha) == (4, 8.0)


def test_half_precision_takes_half_the_room_and_hardly_differs(
    bases: Callable[[str], Base], tmp_path: Path
) -> None:
    base = bases("mistral")
    for kind in ("F32", "F16"):
        convert_peft(RECORDED / "mistral" / "all", base.header, tmp_path / kind, kind)
    assert (tmp_path / "F16").stat().st_size < 0.7 * (tmp_path / "F32").stat().st_size
    assert apart(base.logits(tmp_path / "F16"), FAMILIES["mistral"]["adapters"]["all"]) < 0.02
