"""cantor's network in torch: a small Llama (RMS norm, rotary positions, grouped heads, SwiGLU, tied
embeddings).

Tensor names are those of transformers' LlamaForCausalLM, so that the safetensors load there unchanged.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from models.cantor import recipe

HEAD = recipe.WIDTH // recipe.HEADS
UNITS = torch.cpu.get_capabilities()  # of the processor
NARROW = torch.bfloat16 if UNITS.get("amx_bf16") or UNITS.get("avx512_bf16") else torch.float32
"""What products are in; without units for it bfloat16 is ten times slower."""
LOOK, LOOKED = 1.3, 8  # how sharply heads look back at first, and by how many of their fastest turning pairs


class _Product(torch.autograd.Function):
    """Inputs (..., columns) times a matrix (rows, columns) turned over, multiplied in NARROW."""

    @staticmethod
    def forward(context: FunctionCtx, inputs: Tensor, matrix: Tensor) -> Tensor:
        narrow, narrow_matrix = inputs.to(NARROW), matrix.to(NARROW)
        context.save_for_backward(narrow, narrow_matrix)
        return (narrow @ narrow_matrix.t()).float()

    @staticmethod
    def backward(context: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        narrow, narrow_matrix = context.saved_tensors
        given = gradient.to(NARROW)
        rows = given.reshape(-1, given.shape[-1])
        return (given @ narrow_matrix).float(), (rows.t() @ narrow.reshape(-1, narrow.shape[-1])).float()


def product(inputs: Tensor, matrix: Tensor) -> Tensor:
    """Multiplys inputs by a transposed matrix; float32 in and out."""
    out: Tensor = _Product.apply(inputs, matrix)  # type: ignore[no-untyped-call]
    return out


class Linear(nn.Linear):
    """A matrix without bias."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return product(inputs, self.weight)


def rotary(length: int) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines (length, head), each pair repeated in both halves as in transformers."""
    powers = torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD
    angles = torch.outer(torch.arange(length, dtype=torch.float32), recipe.ROPE_BASE**-powers)
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates query or key heads (batch, heads, positions, head) by their positions."""
    first, second = heads.chunk(2, -1)
    return heads * cosine + torch.cat([-second, first], -1) * sine


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(recipe.WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (recipe.WIDTH,), self.weight, recipe.NORM_EPSILON)


class Attention(nn.Module):
    """Causal attention with grouped key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = Linear(recipe.WIDTH, recipe.WIDTH)
        self.k_proj = Linear(recipe.WIDTH, recipe.KV_HEADS * HEAD)
        self.v_proj = Linear(recipe.WIDTH, recipe.KV_HEADS * HEAD)
        self.o_proj = Linear(recipe.WIDTH, recipe.WIDTH)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query = self.q_proj(hidden).view(batch, length, recipe.HEADS, HEAD).transpose(1, 2)
        key = self.k_proj(hidden).view(batch, length, recipe.KV_HEADS, HEAD).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, length, recipe.KV_HEADS, HEAD).transpose(1, 2)
        groups = recipe.HEADS // recipe.KV_HEADS
        key = rotate(key, cosine, sine).repeat_interleave(groups, 1)
        value = value.repeat_interleave(groups, 1)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosine, sine), key, value, is_causal=True
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, recipe.WIDTH))
        return out


class Feed(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = Linear(recipe.WIDTH, recipe.HIDDEN)
        self.up_proj = Linear(recipe.WIDTH, recipe.HIDDEN)
        self.down_proj = Linear(recipe.HIDDEN, recipe.WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), Feed()

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosine, sine)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Body(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(recipe.VOCABULARY, recipe.WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(recipe.LAYERS))
        self.norm = Norm()


class Cantor(nn.Module):
    """The whole model; `forward` returns hidden states, `logits` the scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Body()
        cosine, sine = rotary(recipe.CONTEXT)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02 if "embed" in name else weight.shape[1] ** -0.5 / 2)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
        self._attend_to_previous_token()

    @torch.no_grad()
    def _attend_to_previous_token(self) -> None:
        """Initialises half of the first layer's heads to attend to the previous token, which helps copying.

        Every embedding gets the same first coordinate. Queries and keys of those heads read only this
        coordinate, and the keys are rotated by one position. Their product is then greatest at the previous
        position for any tokens.
        """
        self.model.embed_tokens.weight[:, 0] = 0.1
        attention = self.model.layers[0].self_attn
        frequencies = recipe.ROPE_BASE ** -(torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
        head_count, kv_head_count = recipe.HEADS // 2, recipe.KV_HEADS // 2
        query, key = torch.zeros(HEAD), torch.zeros(HEAD)
        query[:LOOKED] = LOOK
        key[:LOOKED], key[HEAD // 2 : HEAD // 2 + LOOKED] = (
            LOOK * frequencies[:LOOKED].cos(),
            LOOK * frequencies[:LOOKED].sin(),
        )
        for head in range(head_count):
            attention.q_proj.weight[head * HEAD : (head + 1) * HEAD] = 0
            attention.q_proj.weight[head * HEAD : (head + 1) * HEAD, 0] = query
        for head in range(kv_head_count):
            attention.k_proj.weight[head * HEAD : (head + 1) * HEAD] = 0
            attention.k_proj.weight[head * HEAD : (head + 1) * HEAD, 0] = key
        nn.init.normal_(attention.o_proj.weight[:, : head_count * HEAD], std=0.004)

    def forward(self, ids: Tensor) -> Tensor:
        cosine, sine = self.cosine[: ids.shape[1]], self.sine[: ids.shape[1]]  # type: ignore[index]
        hidden = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            hidden = layer(hidden, cosine, sine)
        out: Tensor = self.model.norm(hidden)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns scores over the vocabulary; the embedding is the output matrix."""
        return product(hidden, self.model.embed_tokens.weight)
