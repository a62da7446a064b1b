"""Antiphon's sampler inside vLLM, as a logits processor. Only vLLM's engine core imports this module.

For the rows that it handles, the sampler draws the token itself, and then sets the row's logits so that vLLM
can take only this token. vLLM reports log-probabilities from before all processors, so they stay raw.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from antiphon.constraints.mask_workers import MaskWorkers, build_token_table, split_after_line_break
from antiphon.engines.vllm.folder import read_folder
from antiphon.engines.vllm.rows import ARGUMENT, FailureSender, RowTable, decode_row
from antiphon.engines.vllm.tokenizer import FolderTokenizer
from antiphon.locked_directory import end_with_owner


class AntiphonSampler(LogitsProcessor):  # type: ignore[misc]
    """The logits processor of one engine core: it draws the tokens of the rows in a `RowTable`."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._folder = Path(vllm_config.model_config.model)
        socket = vllm_config.additional_config[ARGUMENT]
        end_with_owner(Path(socket).parent)  # vLLM's engine core would outlive a killed engine host
        failures = FailureSender(socket)
        max_sequences = vllm_config.scheduler_config.max_num_seqs
        self._table = RowTable(self._vocabulary, max_sequences, failures.send, lambda: self._guides)
        if device.type == "cpu":
            patch_cpu_lora()

    @cached_property
    def _guides(self) -> MaskWorkers:
        """The threads that compute masks. The first constraint starts them."""
        tokenizer = FolderTokenizer(read_folder(self._folder), self._vocabulary)
        table, tokenize = tokenizer.vocabulary, tokenizer.tokenize_bytes
        split = split_after_line_break(tokenize, table) if table.space_prefix else tokenize
        return MaskWorkers(build_token_table(table), split)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Does nothing, since the engine host has checked the request."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Applies the changes of the batch before each step: first removes rows, then adds, then moves
        rows."""
        table = self._table
        if batch_update is not None:
            for index in batch_update.removed:
                table.remove(index)
            for index, params, prompt, output in batch_update.added:
                encoded = (params.extra_args or {}).get(ARGUMENT)
                if encoded is None:
                    table.remove(index)
                else:
                    table.add(index, decode_row(encoded), prompt or (), output)
            for index, target, direction in batch_update.moved:
                table.move(index, target, direction == MoveDirectionality.SWAP)
        table.accept_committed()

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Draws the tokens of Antiphon's rows, and makes every other token of these rows impossible."""
        table = self._table
        indexes = [index for index in sorted(table.rows) if index < logits.shape[0]]
        if not indexes:
            return logits
        block = logits[indexes].float().cpu().numpy()
        tokens = table.choose(np.ascontiguousarray(block), [table.rows[index] for index in indexes])
        logits[indexes] = -torch.inf
        logits[indexes, tokens] = 0.0
        return logits


def patch_cpu_lora() -> None:
    """Patches a defect of vLLM 0.32 on processors: rows without an adapter, which have the index -1, would be
    computed with the last adapter."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    original = PunicaWrapperCPU._apply_shrink  # noqa: SLF001 - the method that is patched
    if getattr(original, "is_patched", False):
        return

    def shrink_adapted(
        self: PunicaWrapperCPU, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: float
    ) -> None:
        original(self, y, x, w, scale)
        indexes = self.token_lora_indices
        y.view(-1, y.shape[-1])[: len(indexes)].masked_fill_((indexes < 0).unsqueeze(1), 0)

    shrink_adapted.is_patched = True  # type: ignore[attr-defined]
    PunicaWrapperCPU._apply_shrink = shrink_adapted  # noqa: SLF001
