"""What a back end must do: the contract of every op.

A decoder (`models/decoder.py`) is one function of an `Ops` object. A back end *compiles* that function into a
`Program`: the CPU back end runs it once to record native ops and replays them in one call per step; eager back ends
run it on every step. Either way the decoder sees only the names below.

Shapes. T is the number of new tokens in the step over all its sequences, B the number of sequences, S the number of
tokens whose logits are wanted. A tensor of the decoder is `[T, width]` (after `select`: `[S, width]`) with rows
contiguous; it is an opaque handle. Heads lie one after another inside a row: head h takes columns
`h * head_dim : (h + 1) * head_dim`. bfloat16 arrays are numpy uint16 arrays holding the upper half of a float32.

Arithmetic, for every back end that promises answers which never change. Each output element depends only on its own
row, the weights, and the KV of its own sequence; its sum runs over K in one fixed order with the same instructions
whatever T, B, the chunking, the block size, the thread count or the neighbours are. Attention reduces over absolute
pieces of a fixed number of tokens, merged in order. So the bits of a row never depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
TokenMask = npt.NDArray[np.uint32]
"""Which tokens may be chosen: bit i of word w stands for token `32 * w + i`. Tokens past its end may not."""

Tensor = Any
"""Opaque to the decoder: a buffer, a numpy array or a torch tensor."""
Weight = Any
"""Opaque: a matrix or vector in the back end's own layout."""


class GroupedWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A weight `[N, K]` stored as small integers. A row is cut into groups of `group` elements, the last one maybe
    shorter; an element is `scale * (code - zero) + minimum`, each step rounded to float32."""

    codes: npt.NDArray[np.uint8]
    """`[N, K]`, each below `2**bits`."""
    scales: Float32Array
    """`[N, ceil(K / group)]`"""
    minimums: Float32Array | None
    """As `scales`; None means 0."""
    bits: int
    """4 or 8."""
    group: int
    """16 or 32."""
    zero: int
    half_scales: bool
    """Whether every scale and minimum is a float16 number."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def __len__(self) -> int:
        return len(self.codes)


WeightPart = Array | GroupedWeight
"""Rows of a matrix: float32, bfloat16 (uint16), or in groups."""


class KVShape(msgspec.Struct, frozen=True, kw_only=True):
    """The KV memory to allocate. Layers are numbered over the whole model; each belongs to one group."""

    layer_groups: tuple[int, ...]
    """Group of each layer; `len` is the number of layers."""
    num_kv_heads: int
    head_dim: int
    dtype: str
    """"bfloat16", "float32" or "int8". With int8 each token and head has one float32 scale for its key and one for its
    value, max |x| / 127; x is stored as x / scale rounded half to even. A vector with something that is not finite has
    the scale NaN, so that whoever attends to it gets NaN. Attention reads back the stored values, those of the step's
    own tokens too."""
    block_size: int
    num_blocks: int
    """The null block 0 included; nothing is ever read from or written to block 0 on behalf of a sequence."""
    max_num_seqs: int
    max_blocks_per_seq: int

    @property
    def num_groups(self) -> int:
        return max(self.layer_groups) + 1

    @property
    def layers_per_page(self) -> int:
        """Layers in the largest group: a page of any group has room for this many."""
        return max(self.layer_groups.count(g) for g in range(self.num_groups))

    @property
    def bytes_per_vector(self) -> int:
        """One head's key or value of one token; with int8 its scale included."""
        return self.head_dim + 4 if self.dtype == "int8" else self.head_dim * (2 if self.dtype == "bfloat16" else 4)

    @property
    def bytes_per_block(self) -> int:
        return 2 * self.layers_per_page * self.block_size * self.num_kv_heads * self.bytes_per_vector


class KVMemory(Protocol):
    """Blocks and block tables. Layout inside a block is the back end's own; a block is one contiguous range."""

    shape: KVShape
    block_tables: Int32Array
    """int32 `[num_groups, max_num_seqs, max_blocks_per_seq]`, in host memory, written by the worker between steps.
    Token t of row r in group g lives in block `block_tables[g, r, t // block_size]` at offset `t % block_size`."""

    def expect(self, block: int) -> None:
        """Blocks up to this one are in use, or will be at once. A hint: a back end may make memory ready."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination), in order."""

    def erase_blocks(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zero bytes."""

    def export_block(self, block: int) -> bytes:
        """The block's bytes, `bytes_per_block` long."""

    def import_block(self, block: int, data: bytes) -> None:
        """Restore bytes that `export_block` of the same shape gave. Raises ValueError on another length."""

    def swap_out(self, block: int, slot: Array) -> None:
        """Copy a block's bytes into `slot`, a writable uint8 array of `bytes_per_block`: the bytes of `export_block`.
        Raises ValueError on another length."""

    def swap_in(self, slot: Array, block: int) -> None:
        """Copy back what `swap_out` of the same shape gave. Raises ValueError on another length."""


class StepBatch(msgspec.Struct, kw_only=True):
    """One step's input. All int32. Sequences one after another; a sequence's new tokens are its last ones."""

    token_ids: Int32Array
    """[T]"""
    positions: Int32Array
    """[T], absolute position of each token in its sequence."""
    batch_rows: Int32Array
    """[B], block-table row of each sequence."""
    query_start_loc: Int32Array
    """[B + 1], first token of each sequence in `token_ids`."""
    seq_lens: Int32Array
    """[B], tokens of the sequence in the cache after this step, new ones included."""
    logits_tokens: Int32Array
    """[S], indices into `token_ids` whose logits are wanted, ascending."""


class RopeParams(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding (Su et al., arXiv:2104.09864), rotate-half convention of Hugging Face's Llama.

    With `inv_freq` of length R/2, the first R dims of a head are rotated: for i < R/2, with angle a = position *
    inv_freq[i], (x[i], x[i + R/2]) becomes (x[i] cos a - x[i + R/2] sin a, x[i + R/2] cos a + x[i] sin a), times
    `scale`. cos and sin are computed in float64 from the exact position and rounded to float32.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0
    max_position: int = 0
    """Positions below this must be served."""


Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""silu: x * sigmoid(x). gelu: x * (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel, arXiv:1606.08415); gelu_tanh: its
approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2. relu: max(x, 0)."""


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How a token chooses its experts: the `top_k` of softmax(router logits) over all experts, the lower index first
    among equals. (Shazeer et al., arXiv:1701.06538; Jiang et al., arXiv:2401.04088)"""

    top_k: int
    normalise: bool
    """Whether the probabilities of those chosen are divided by their sum."""


class Ops(Protocol):
    """The ops. Every method returns a new tensor unless it says otherwise; inputs are not changed."""

    def embedding(self, table: Weight) -> Tensor:
        """Rows of `table` `[vocab, width]` for the step's token ids, as float32 `[T, width]`."""

    def add_positions(self, x: Tensor, table: Weight, offset: int) -> Tensor:
        """x + the rows of `table` `[positions, width]` at the step's positions + `offset`: learned positions. May reuse
        x's memory: x must not be used afterwards."""

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight per row; mean in float32. (Zhang & Sennrich, arXiv:1910.07467)

        x may be wider than `weight`, by a whole factor: then each run of that many columns, a head for example, is
        normalised by itself.
        """

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
        """(x - mean(x)) / sqrt(variance(x) + eps) * weight (+ bias) per row, the variance that of the row itself; mean
        and variance in float32. (Ba et al., arXiv:1607.06450)"""

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x * factor. May reuse x's memory: x must not be used afterwards."""

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """x @ weight.T (+ bias): `[T, K]` with `weight` `[N, K]` gives float32 `[T, N]`; float32 accumulation.

        With bfloat16 weights a back end may round x to bfloat16 first, always or never.
        """

    def split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Views of adjacent column ranges; the widths add up to x's width."""

    def rotary(self, x: Tensor, rope: RopeParams, head_dim: int) -> Tensor:
        """Rotate every head of x at the step's positions. May reuse x's memory: x must not be used afterwards."""

    def write_kv(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the new tokens' keys and values, `[T, num_kv_heads * head_dim]`, rounded to the cache's dtype."""

    def paged_attention(
        self, layer: int, query: Tensor, *, scale: float, window: int | None = None, soft_cap: float | None = None
    ) -> Tensor:
        """Causal attention of the new tokens over the keys and values stored in their sequences' blocks.

        `query` is `[T, num_heads * head_dim]`; num_heads is a multiple of num_kv_heads, query head h reads KV head
        `h // (num_heads // num_kv_heads)`. The new tokens' own KV is already written. A token at position p sees
        positions p - window + 1 .. p (all from 0 without a window). Table entries past a sequence's end, and entries
        wholly below the window, are not read. A score is scale * q.k; with `soft_cap` c it becomes c * tanh(score / c)
        (Gemma 2, arXiv:2408.00118). Scores, softmax and sums are float32; with KV in bfloat16 a back end may
        round the query to bfloat16 first, and the numerators of softmax before they weigh the values (their sum is
        then that of the rounded ones, so that the weights still add to one), each always or never; with KV in int8, a
        head's query to a float32 scale times integers of at most 16 bits. Returns `[T, num_heads * head_dim]`.

        Source: Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention", section 4.1.
        """

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """The activation of every element. May reuse x's memory: x must not be used afterwards."""

    def gated(self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor:
        """activation(gate) * up, elementwise. (Shazeer, arXiv:2002.05202)"""

    def experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        routing: Routing,
        kind: Activation,
    ) -> Tensor:
        """A mixture of gated MLPs: the sum over a token's experts e, in ascending order of e, of
        p_e * linear(gated(*halves of linear(x, gate_up[e]), kind), down[e]), p_e being the router's probability.

        `router_logits` is `[T, experts]`, `gate_up[e]` `[2 * inner, width]` (gate's rows first), `down[e]`
        `[width, inner]`. A token whose router logits hold a NaN gets NaN. Each weight is read for the tokens that
        chose it only.
        """

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Each row of x times sigmoid of its number in `gate` `[T, 1]`. May reuse x's memory: x must not be used
        afterwards."""

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap). May reuse x's memory: x must not be used afterwards."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y. May reuse x's memory: x must not be used afterwards."""

    def select(self, x: Tensor) -> Tensor:
        """Rows of the tokens in `logits_tokens`: `[T, width]` to `[S, width]`."""

    def logits(self, x: Tensor, head: Weight, screen: Weight | None) -> Tensor:
        """`linear(x, head)`. `screen`: what `Backend.screen` made of `head`, if this is the decoder's result as it
        is."""


class Program(Protocol):
    """A compiled decoder."""

    def run(self, batch: StepBatch) -> Array:
        """Compute one step and return the build function's result for it, float32 `[S, width]` (`[T, width]` if the
        function did not select). The array is valid until the next run. T is at most the `max_num_tokens` compiled
        for. The KV of the new tokens is written as a side effect."""

    def run_greedy(self, batch: StepBatch) -> Int32Array:
        """The same step, but only the tokens that `sample` would choose greedily from its logits as they are: the
        index of each row's largest, the lowest among equals; -1 where one is NaN or the largest is not finite."""


class SampleBatch(msgspec.Struct, kw_only=True):
    """How to choose one token per row of logits. Arrays of length S; ragged lists as (start, values) pairs."""

    temperature: Float32Array
    """At most `messages.GREEDY_TEMPERATURE` means greedy: the largest logit, the lowest id among equals."""
    top_k: Int32Array
    """0 keeps all."""
    top_p: Float32Array
    min_p: Float32Array
    repetition_penalty: Float32Array
    presence_penalty: Float32Array
    frequency_penalty: Float32Array
    seed: npt.NDArray[np.int64]
    sequence_index: Int32Array
    position: Int32Array
    """Index of the token to be chosen in its whole sequence, prompt included; names the noise with seed and index."""
    history_start: npt.NDArray[np.int64]
    """[S + 1], ranges of `history`; empty for rows without penalties."""
    history: Int32Array
    """Tokens so far, prompt first."""
    num_prompt: Int32Array
    """How many of the row's history are prompt."""
    bias_start: npt.NDArray[np.int64]
    """[S + 1], ranges of `bias_ids` and `bias_values`; added to the logits."""
    bias_ids: Int32Array
    bias_values: Float32Array
    banned_start: npt.NDArray[np.int64]
    """[S + 1], ranges of `banned_ids`, whose logits become -inf."""
    banned_ids: Int32Array
    mask_index: Int32Array
    """[S], each row's mask among `masks`; -1 for a row that may choose any token."""
    masks: TokenMask
    """[M, W]; tokens that a row's mask leaves out get the logit -inf."""
    num_logprobs: Int32Array
    """-1: none; k >= 0: the chosen token's logprob and rank, and the k likeliest."""


class SampleOutput(msgspec.Struct, kw_only=True):
    """Chosen tokens. The logprob arrays are None when no row asked."""

    token_ids: Int32Array
    """[S]; -1 for a row whose logits hold a NaN or have no finite candidate."""
    logprobs: Float32Array | None
    """[S], natural logarithm of the softmax of the raw logits at the chosen token; -inf where none was chosen."""
    ranks: Int32Array | None
    """[S], 1 + the number of tokens with a larger raw logit; 0 where none was chosen."""
    top_ids: Int32Array | None
    """[S, K], K the largest of num_logprobs, at most the vocabulary; best first, lower id first among equals; -1 past a
    row's own number."""
    top_logprobs: Float32Array | None


class Backend(Protocol):
    """One way to compute. `dtype` is that of the weights and the choice of arithmetic."""

    name: str
    keeps_groups: bool
    """Whether a matrix in groups stays so in memory; else it is expanded to `dtype` when it is made."""

    def describe(self) -> dict[str, str]:
        """Facts for `octavo doctor` and the model fingerprint: at least `kernel_path`, `num_threads` and
        `kv_layout_version`, a number that is counted up when the arrangement inside a block changes."""

    def matrix(self, parts: Sequence[WeightPart]) -> Weight:
        """A weight `[sum of N, K]` from row blocks `[N, K]`, each float32, bfloat16 (uint16) or in groups, in the back
        end's layout. It serves `linear`, and if all its parts are kept alike also `embedding`."""

    def num_bytes(self, weight: Weight) -> int:
        """Memory that a weight made by `matrix` or `screen` takes."""

    def matrix_bytes(self, parts: Sequence[WeightPart]) -> int:
        """Memory that `matrix(parts)` would take. Only shapes and formats count; nothing is read or made."""

    def screen(self, head: Weight) -> Weight | None:
        """What lets `Program.run_greedy` find the largest of the products with `head` without computing all of them;
        None where the back end has no such thing, or it would not pay."""

    def screen_bytes(self, parts: Sequence[WeightPart]) -> int:
        """Memory that `screen(matrix(parts))` would take. As `matrix_bytes`."""

    def vector(self, data: Array) -> Weight:
        """A float32 vector from float32 or bfloat16."""

    def allocate_kv(self, shape: KVShape) -> KVMemory:
        """Reserve the pool. Memory is zero and need not be resident until it is written."""

    def compile(self, build: Callable[[Ops], Tensor], kv: KVMemory, max_num_tokens: int) -> Program:
        """Turn a decoder into a program over `kv`."""

    def sample(self, logits: Array, batch: SampleBatch) -> SampleOutput:
        """Choose one token per row of `logits` `[S, vocab]`, which may be overwritten.

        In this order: penalties (repetition over prompt and answer, then frequency and presence over the answer),
        bias, bans, masks; then unless greedy: divide by temperature, min_p, top_k, top_p over what is left, and one
        draw. min_p keeps p >= min_p * max p. top_k keeps the k largest, lower ids first among equals. top_p sorts what
        is left by probability, descending, lower ids first among equals, and keeps up to and including the token at
        which the sum reaches top_p of the mass left. The draw is u = `uniform(seed, sequence_index, position)`:
        walking the kept tokens by ascending id, the first at which the running sum of probabilities exceeds
        u times the kept mass. Logprobs and ranks come from the raw logits, before any of it.
        """

    def close(self) -> None:
        """Stop threads and free memory."""


def uniform(seed: int, sequence_index: int, position: int) -> float:
    """The noise of one token: a float32 in [0, 1) with 24 random bits. Same on every back end.

    SplitMix64's finaliser (Steele et al. 2014) applied in turn to seed, index and position, as 64-bit words.
    """
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    h = mix(seed & mask)
    h = mix(h ^ (sequence_index & mask))
    h = mix(h ^ (position & mask))
    return (h >> 40) / float(1 << 24)
