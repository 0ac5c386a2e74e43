"""The forward pass of Qwen3 over the KV cache. Tensor names carry their shape.

T tokens, B requests, S cached tokens, V vocabulary, C hidden, H query heads, K kv heads,
G = H / K query heads per kv head, D head dimension.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_workers.engine.architecture import Architecture
from gpu_workers.engine.load_weights import LayerWeights, Weights, moved

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, q_THD, kv_T2KD) -> o_T(HD). Stores the keys and values, then attends."""


class Model:
    """Computes logits. Holds the weights of one version at a time."""

    def __init__(
        self,
        shape: Architecture,
        weights: Weights,
        *,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape, self.weights = shape, weights
        self.dtype, self.device = dtype, device
        self._cos, self._sin = _rope_tables(shape, max_tokens, dtype, device)

    def offload(self) -> None:
        """Keep the weights in host memory only."""
        self.weights = moved(self.weights, torch.device("cpu"))

    def load(self) -> None:
        """Bring the weights back to the device."""
        self.weights = moved(self.weights, self.device)

    @torch.inference_mode()
    def prefill(self, row: Tensor, ids: Sequence[int], start: int) -> Tensor:
        """Compute one request's tokens from position ``start`` on. Returns the last token's logits [1, V].

        ``row`` [layer, 2, K, capacity, D] holds the KV of the first ``start`` tokens and receives the rest.
        """
        count, end = len(ids), start + len(ids)
        positions_T = torch.arange(start, end, device=self.device)
        # Query heads of one kv head are laid out along the query axis, so that keys are never repeated.
        mask_TS = torch.arange(end, device=self.device)[None] <= positions_T[:, None]
        mask_GTS = mask_TS.repeat(self._groups, 1)

        def attend(layer: int, q_THD: Tensor, kv_T2KD: Tensor) -> Tensor:
            row[layer, :, :, start:end] = kv_T2KD.permute(1, 2, 0, 3)
            q_1KGTD = q_THD.transpose(0, 1).reshape(1, self.shape.kv_heads, self._groups * count, -1)
            k_1KSD, v_1KSD = row[layer, :1, :, :end], row[layer, 1:, :, :end]
            o_1KGTD = F.scaled_dot_product_attention(q_1KGTD, k_1KSD, v_1KSD, attn_mask=mask_GTS)
            return o_1KGTD.view(self.shape.heads, count, -1).transpose(0, 1).reshape(count, -1)

        x_TC = self._layers(ids, positions_T, attend)
        return self._logits(x_TC[-1:])

    @torch.inference_mode()
    def decode(
        self, data: Tensor, rows: Sequence[int], ids: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """Compute one token per request in ``rows``. Returns logits [B, V].

        ``data`` is RunningCache.data. Request b's token goes to ``positions[b]`` of its row.
        """
        batch, longest = len(rows), max(positions) + 1
        rows_B = torch.tensor(rows, device=self.device)
        positions_B = torch.tensor(positions, device=self.device)
        # Only a leading block of rows can be read as a view; any other set is gathered, which copies the KV.
        contiguous = list(rows) == list(range(batch))
        visible_BS = torch.arange(longest, device=self.device)[None] <= positions_B[:, None]
        mask_B11S = torch.zeros_like(visible_BS, dtype=self.dtype).masked_fill_(~visible_BS, -torch.inf)
        mask_B11S = mask_B11S[:, None, None]

        def attend(layer: int, q_BHD: Tensor, kv_B2KD: Tensor) -> Tensor:
            cache = data[layer]
            cache[:, rows_B, :, positions_B] = kv_B2KD
            seen = cache[:, :batch, :, :longest] if contiguous else cache[:, rows_B, :, :longest]
            q_BKGD = q_BHD.view(batch, self.shape.kv_heads, self._groups, -1)
            o_BKGD = F.scaled_dot_product_attention(q_BKGD, seen[0], seen[1], attn_mask=mask_B11S)
            return o_BKGD.reshape(batch, -1)

        return self._logits(self._layers(ids, positions_B, attend))

    @property
    def _groups(self) -> int:
        return self.shape.heads // self.shape.kv_heads

    def _layers(self, ids: Sequence[int], positions_T: Tensor, attend: Attend) -> Tensor:
        x_TC = F.embedding(torch.tensor(ids, device=self.device), self.weights.embed)
        cos_T1D, sin_T1D = self._cos[positions_T][:, None], self._sin[positions_T][:, None]
        for index, layer in enumerate(self.weights.layers):
            h_TC = F.rms_norm(x_TC, layer.input_norm.shape, layer.input_norm, self.shape.norm_eps)
            q_THD, kv_T2KD = self._project(layer, h_TC, cos_T1D, sin_T1D)
            x_TC = x_TC + F.linear(attend(index, q_THD, kv_T2KD), layer.out)
            h_TC = F.rms_norm(x_TC, layer.post_norm.shape, layer.post_norm, self.shape.norm_eps)
            gate, up = F.linear(h_TC, layer.gate_up).chunk(2, dim=-1)
            x_TC = x_TC + F.linear(F.silu(gate) * up, layer.down)
        return F.rms_norm(x_TC, self.weights.norm.shape, self.weights.norm, self.shape.norm_eps)

    def _project(
        self, layer: LayerWeights, h_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return normalized and rotated queries [T, H, D], and keys and values [T, 2, K, D]."""
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        qkv = F.linear(h_TC, layer.qkv).view(len(h_TC), heads + 2 * kv_heads, dim)
        qk = F.rms_norm(qkv[:, : heads + kv_heads], (dim,), None, self.shape.norm_eps) * layer.qk_norm
        # The table's sine carries the sign, so rotate_half is a roll.
        qk = torch.addcmul(qk * cos_T1D, torch.roll(qk, dim // 2, dims=-1), sin_T1D)
        kv = torch.cat((qk[:, heads:], qkv[:, heads + kv_heads :]), dim=1)
        return qk[:, :heads], kv.view(-1, 2, kv_heads, dim)

    def _logits(self, x_TC: Tensor) -> Tensor:
        return F.linear(x_TC, self.weights.lm_head)


def _rope_tables(
    shape: Architecture, max_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cos and signed sin, each [max_tokens, D]; the first half of sin is negated."""
    dim = shape.head_dim
    inverse = 1.0 / shape.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(max_tokens, dtype=torch.float32)[:, None] * inverse
    cos = torch.cat((angles.cos(), angles.cos()), dim=-1)
    sin = torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return cos.to(device, dtype), sin.to(device, dtype)
