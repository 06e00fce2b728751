"""Steps of a decoder on accelerators, from published figures.

What a step of n tokens takes (all terms add up):

    layers x [ GEMM(n) + elementwise(n) + 2 all-reduces ] + output projection of the sampled rows
    + KV that decodes read + attention of prompt chunks + copies + host

* GEMM: seconds by number of tokens as Vidur profiled them on an A100-80GB for three weight sizes per layer and device
  (MLSys'24; public profiles of internlm-20b and llama-2-70b), scaled by weight bytes and peak arithmetic; never below
  reading the weights at the share of the memory's bandwidth that the same profiles reach.
* KV: paged kernel at 0.75 of the bandwidth (DistServe's fit of a paged engine, OSDI'24: 1.38 TB/s on an A100-80GB is
  0.68; FlashAttention's figures are above 0.8); contiguous kernels 1.23 times faster (paper, Fig. 18a: 20 to 26 %).
* Chunk attention at 120 TFLOPS on an A100 (FlashAttention on head size 128), scaled by peak arithmetic.
* Host: see `Host`.

Layers with a window read and compute what is within it. A mixture of experts is two products: GEMM(n) with what every
token is multiplied with, and one with the experts that n tokens are expected to choose between them under uniform
routing (`Experts.expected_active`), each of which sees its equal part of the n x top_k rows. The second is taken to be
as fast as a dense product of as many weights and rows.

None of these was fitted to a figure that the simulation is compared with; `ARTIFACT` says which two numbers of the
paper its estimate was checked against.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from octavo.errors import ConfigError
from octavo.sim.cost_model import Chunk, CostModel, StepCost, StepWork
from octavo.sim.devices import Device
from octavo.sim.model_shape import Experts, ModelShape

_A100_FLOPS = 312e12
_PROFILED_BYTES_PER_S = 1.935e12
"""Memory bandwidth of the card that was profiled, an A100-80GB on PCIe."""
_STREAMED_BYTES_PER_S = 1.5e12
"""What its GEMMs read of weights up to 64 tokens."""

_GEMM_TOKENS = (1, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_GEMM_MS: dict[float, tuple[float, ...]] = {
    # Weight bytes of a layer on one device -> milliseconds of the layer's matrix products.
    634e6: (0.404, 0.420, 0.439, 0.586, 0.728, 1.556, 3.05, 5.56, 10.58),
    428e6: (0.284, 0.296, 0.307, 0.383, 0.588, 1.04, 2.1, 3.8, 7.6),
    214e6: (0.152, 0.159, 0.166, 0.204, 0.336, 0.58, 1.01, 1.99, 3.98),
}

_ELEMENTWISE_S = 27e-6
"""Norms, activation, residual and rotary of a layer, few tokens: launches."""
_ELEMENTWISE_S_PER_TOKEN = 0.205e-6
"""The same for many tokens, 5120 wide, on the profiled card."""
_ELEMENTWISE_WIDTH = 5120
_ELEMENTWISE_SPLIT = 0.55
"""Share of it that tensor parallelism splits. A gated layer of width h, 2.7 h in its feed-forward part, moves 8.1 h
elements for the activation and 4 h for rotary, which are split; 4 h for norms and 6 h for residuals are not."""

_PAGED_SHARE = 0.75
_CONTIGUOUS_SPEEDUP = 1.23
_CHUNK_SHARE = 120e12 / _A100_FLOPS

_SMALL_BLOCKS = ((1, 4.0), (2, 2.5), (4, 1.6), (8, 1.15), (16, 1.0))
"""Block size -> how much longer the paged kernel reads KV. An assumption: a block below 8 tokens leaves lanes of a warp
idle (32 / block size threads share a token) and breaks coalescing."""

_COPY_LAUNCH_S = 3.5e-6
"""One small cudaMemcpyAsync: the median of three published measurements, 2.3 us (FlexKV PR 193, H20), 3.5 us
(torchcomms PR 2195, H100) and 5 to 7 us (DualPath, arXiv 2602.21548). The artifact makes one per block, layer and K or
V when it swaps."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the processor adds to every step."""

    step_s: float
    sequence_s: float
    """Per sequence in the step."""
    request_s: float = 0.0
    """Per request with sequences in the step."""


ARTIFACT = Host(step_s=5e-3, sequence_s=0.0625e-3, request_s=0.1875e-3)
"""The paper's engine: Python and Ray, and a sampler that waits for the device. An estimate from its published code, at
the low end: 5 (to 8) ms, and 0.25 (to 0.3) ms for a request with one sequence. That sampler takes requests one by one:
three waits are the request's, two while PyTorch's `multinomial` checks its input and one for the tokens drawn; a fourth
is each sequence's, for the logprob of its token. So a further answer is charged a quarter. (A beam search waits twice
for its request, once with a top-k over all beams' vocabularies; it is charged the same.) 0.25 ms agrees with what the
paper's own batches of 30 and 132 requests imply by Little's law: those two cells of Figure 13 are no independent test
of it."""
MODERN = Host(step_s=1.5e-3, sequence_s=0.02e-3)
"""Engines that sample on the device; an estimate."""
NATIVE = Host(step_s=0.5e-3, sequence_s=0.0)
"""FasterTransformer: C++, sampling on the device; an estimate."""


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear; beyond the last point along the last line, before the first the first value."""
    if x <= xs[0]:
        return ys[0]
    i = min(bisect_right(xs, x), len(xs) - 1)
    x0, x1, y0, y1 = xs[i - 1], xs[i], ys[i - 1], ys[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class RooflineCost:
    """A decoder on one or several accelerators with tensor parallelism; see the top of this file.

    Args:
        shape: The model.
        device: Each of them.
        num_devices: Over which heads and matrices are split.
        block_size: Tokens per KV block.
        slow_small_blocks: Whether blocks below 16 tokens slow the paged kernel, by an assumption; see `_SMALL_BLOCKS`.
        kernel: "paged" or "contiguous".
        host: What the processor adds.
        layers_per_page: Layers that a block holds the KV of; by default all. Fewer where windows differ: see
            `octavo.core.kv_groups`.

    Raises:
        ConfigError: For a kernel that is neither, or no device.
    """

    def __init__(
        self,
        shape: ModelShape,
        device: Device,
        num_devices: int = 1,
        *,
        block_size: int = 16,
        slow_small_blocks: bool = True,
        kernel: str = "paged",
        host: Host = ARTIFACT,
        layers_per_page: int | None = None,
    ) -> None:
        if kernel not in ("paged", "contiguous"):
            raise ConfigError("kernel", kernel, "paged or contiguous")
        if num_devices < 1:
            raise ConfigError("num_devices", num_devices, "at least 1")
        self.shape = shape
        self.device = device
        self.num_devices = num_devices
        self._layers_per_page = shape.num_layers if layers_per_page is None else layers_per_page
        self.block_bytes = shape.kv_bytes_of(self._layers_per_page) * block_size
        self._host = host
        self._head_bytes = shape.head_bytes / num_devices
        kv_bytes_per_s = device.bandwidth_bytes_per_s * _PAGED_SHARE
        if kernel == "contiguous":
            kv_bytes_per_s *= _CONTIGUOUS_SPEEDUP
        elif slow_small_blocks:
            sizes, factors = zip(*_SMALL_BLOCKS, strict=True)
            kv_bytes_per_s /= interpolate(sizes, factors, min(block_size, sizes[-1]))
        self._kv_s_per_token = shape.kv_bytes_per_token / num_devices / kv_bytes_per_s
        width = shape.num_heads * shape.head_dim
        chunk_flops_per_s = device.flops * _CHUNK_SHARE * num_devices
        self._chunk_s_per_pair = 4 * width * shape.num_layers / chunk_flops_per_s
        self._layer_s: dict[int, float] = {}
        self._head_s: dict[int, float] = {}

    def step(self, work: StepWork) -> StepCost:
        forward_s = 0.0
        if work.num_tokens:
            host = self._host
            num_sequences = max(work.num_decodes + len(work.chunks), work.num_sampled)
            forward_s = (
                self._layers_s(work.num_tokens)
                + self._projection_s(work.num_sampled)
                + work.decode_context_tokens * self._kv_s_per_token
                + sum(map(self._chunk_s, work.chunks))
                + host.step_s
                + host.sequence_s * num_sequences
                + host.request_s * (num_sequences - work.num_siblings)
            )
        if work.num_copied_blocks:
            forward_s += self.copy_s(work.num_copied_blocks)
        swap_s = self.swap_s(work.num_swapped_out_blocks) + self.swap_s(work.num_swapped_in_blocks)
        return StepCost(forward_s=forward_s, swap_s=swap_s)

    def gemm_s(self, num_tokens: float, weight_bytes: float) -> float:
        """Matrix products of `num_tokens` rows with weights of so many bytes on one device."""
        if num_tokens == 0:
            return 0.0
        profiled = min(_GEMM_MS, key=lambda size: abs(size - weight_bytes))
        scale = weight_bytes / profiled * _A100_FLOPS / self.device.flops
        arithmetic_s = interpolate(_GEMM_TOKENS, _GEMM_MS[profiled], num_tokens) * 1e-3 * scale
        share = _STREAMED_BYTES_PER_S / _PROFILED_BYTES_PER_S
        return max(arithmetic_s, weight_bytes / (self.device.bandwidth_bytes_per_s * share))

    def copy_s(self, num_blocks: int) -> float:
        """Copies of blocks within the device, one launch for all (paper, section 5.1)."""
        return 2 * num_blocks * self.block_bytes / self.num_devices / self.device.bandwidth_bytes_per_s

    def swap_s(self, num_blocks: int) -> float:
        """One direction between device and host: bound by launches for small blocks, by the bus for large ones."""
        launches_s = num_blocks * self._layers_per_page * 2 * _COPY_LAUNCH_S
        return max(launches_s, num_blocks * self.block_bytes / self.num_devices / self.device.host_bytes_per_s)

    def _layers_s(self, num_tokens: int) -> float:
        known = self._layer_s.get(num_tokens)
        if known is None:
            elementwise_s, all_reduces_s = self._elementwise_s(num_tokens), self._all_reduces_s(num_tokens)
            known = self._layer_s[num_tokens] = sum(
                count * (self._products_s(num_tokens, experts) + elementwise_s + all_reduces_s)
                for experts, count in self.shape.kinds.items()
            )
        return known

    def _products_s(self, num_tokens: int, experts: Experts | None) -> float:
        """Matrix products of one layer."""
        dense_s = self.gemm_s(num_tokens, self.shape.dense_bytes(experts) / self.num_devices)
        if experts is None:
            return dense_s
        active = experts.expected_active(num_tokens)
        active_bytes = active * self.shape.expert_bytes(experts) / self.num_devices
        return dense_s + self.gemm_s(num_tokens * experts.top_k / active, active_bytes)

    def _projection_s(self, num_rows: int) -> float:
        known = self._head_s.get(num_rows)
        if known is None:
            known = self._head_s[num_rows] = self.gemm_s(num_rows, self._head_bytes)
        return known

    def _elementwise_s(self, num_tokens: int) -> float:
        width = self.shape.hidden / _ELEMENTWISE_WIDTH
        width *= 1 - _ELEMENTWISE_SPLIT + _ELEMENTWISE_SPLIT / self.num_devices
        slower = _PROFILED_BYTES_PER_S / self.device.bandwidth_bytes_per_s
        return max(_ELEMENTWISE_S, num_tokens * _ELEMENTWISE_S_PER_TOKEN * width * slower)

    def _all_reduces_s(self, num_tokens: int) -> float:
        """Two per layer (Megatron-LM)."""
        if self.num_devices == 1:
            return 0.0
        device = self.device
        return 2 * (device.allreduce_latency_s + num_tokens * self.shape.hidden * 2 / device.allreduce_bytes_per_s)

    def _chunk_s(self, chunk: Chunk) -> float:
        num_pairs = chunk.num_pairs - chunk.num_tokens / 2  # of a chunk's own square the half, as FlashAttention counts
        return num_pairs * self._chunk_s_per_pair + chunk.num_read * self._kv_s_per_token


class PaddedCost:
    """Request-level batching as FasterTransformer computes it: every prompt padded to the longest of its batch, every
    answer computed until the longest is done. The plans name only those that still run; this charges for all.

    Stateful: one per simulation.
    """

    def __init__(self, base: CostModel) -> None:
        self._base = base
        self._num_sequences = 0
        self._num_tokens = 0
        """Of each padded sequence."""

    def step(self, work: StepWork) -> StepCost:
        if work.chunks:
            if any(chunk.num_before for chunk in work.chunks) or work.num_decodes:
                raise ConfigError("max_num_batched_tokens", work.num_tokens, "enough for a whole batch of prompts")
            self._num_sequences = count = len(work.chunks)
            self._num_tokens = longest = max(chunk.num_tokens for chunk in work.chunks)
            padded = StepWork(num_tokens=count * longest, chunks=[Chunk(longest, 0)] * count, num_sampled=count)
            return self._base.step(padded)
        if not work.num_tokens:
            return self._base.step(work)
        self._num_tokens += 1
        count = self._num_sequences
        return self._base.step(
            StepWork(
                num_tokens=count,
                num_decodes=count,
                decode_context_tokens=count * self._num_tokens,
                num_sampled=count,
            )
        )
