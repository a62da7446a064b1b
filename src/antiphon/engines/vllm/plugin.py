"""Antiphon's sampler inside vLLM, as a logits processor. Only vLLM's engine core imports this module.

For its rows it draws the token itself, and leaves vLLM one possible token, which vLLM then takes as the
likeliest one. The log-probabilities that vLLM reports are those before any processor, so they stay raw.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from antiphon.constraints.mask_workers import MaskWorkers, build_token_table, split_after_line_break
from antiphon.engines.vllm.failures import FailureSender
from antiphon.engines.vllm.folder import read_folder
from antiphon.engines.vllm.row_request import ARGUMENT, decode_row
from antiphon.engines.vllm.rows import RowTable
from antiphon.engines.vllm.tokenizer import FolderTokenizer
from antiphon.locked_directory import end_with_owner


class AntiphonSampler(LogitsProcessor):  # type: ignore[misc]
    """The processor of one engine core."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._folder = Path(vllm_config.model_config.model)
        socket = vllm_config.additional_config[ARGUMENT]
        end_with_owner(Path(socket).parent)  # vLLM's engine core would outlive a killed engine host
        failures = FailureSender(socket)
        most = vllm_config.scheduler_config.max_num_seqs
        self._table = RowTable(self._vocabulary, most, failures.send, lambda: self._guides)
        if device.type == "cpu":
            keep_base_rows_clean()

    @cached_property
    def _guides(self) -> MaskWorkers:
        """The threads that compute masks, which the first constraint starts."""
        tokenizer = FolderTokenizer(read_folder(self._folder), self._vocabulary)
        table, tokenize = tokenizer.vocabulary, tokenizer.tokenize_bytes
        split = split_after_line_break(tokenize, table) if table.space_prefix else tokenize
        return MaskWorkers(build_token_table(table), split)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """The engine host has checked the request."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the batch before each step: removed rows first, then added, then moved ones."""
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
            for index, other, way in batch_update.moved:
                table.move(index, other, way == MoveDirectionality.SWAP)
        table.catch_up()

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leaves each of Antiphon's rows one possible token."""
        table = self._table
        indexes = [index for index in sorted(table.rows) if index < logits.shape[0]]
        if not indexes:
            return logits
        block = logits[indexes].float().cpu().numpy()
        tokens = table.choose(np.ascontiguousarray(block), [table.rows[index] for index in indexes])
        logits[indexes] = -torch.inf
        logits[indexes, tokens] = 0.0
        return logits


def keep_base_rows_clean() -> None:
    """Mends adapters on processors in vLLM 0.32: rows without an adapter, which have the index -1, would get
    the weights of the last adapter."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    shrink = PunicaWrapperCPU._apply_shrink  # noqa: SLF001 - the method that is mended
    if getattr(shrink, "is_mended", False):
        return

    def shrink_adapted(
        self: PunicaWrapperCPU, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: float
    ) -> None:
        shrink(self, y, x, w, scale)
        indexes = self.token_lora_indices
        y.view(-1, y.shape[-1])[: len(indexes)].masked_fill_((indexes < 0).unsqueeze(1), 0)

    shrink_adapted.is_mended = True  # type: ignore[attr-defined]
    PunicaWrapperCPU._apply_shrink = shrink_adapted  # noqa: SLF001
