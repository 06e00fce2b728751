"""What int8 KV costs the default model: how far the log-probabilities of a text move, beside bfloat16 KV."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from octavo import LLM, SamplingParams

TEXT = """\
When a language model writes, it keeps a key and a value for every token it has read, in every layer. These are the
memory of the conversation: without them each new word would mean reading everything again. They grow with the text,
and soon they take more room than the model itself. The first engines reserved one long stretch for each request, as
long as the longest answer could be, and most of it stayed empty. An operating system met the same trouble half a
century ago, and solved it with pages: memory is cut into blocks of one size, a table says where each block lies, and
a process sees one unbroken range that is scattered all over the machine. The same idea serves here. A sequence takes
a block when it needs one, gives its blocks back when it ends, and two sequences that begin alike may share what they
have in common.
"""


def text_logprobs(kv_cache_dtype: str) -> npt.NDArray[np.float64]:
    """Of each token of the text after the first."""
    with LLM("smollm2-135m", quantization="none", dtype="float32", kv_cache_dtype=kv_cache_dtype, num_blocks=64) as llm:
        (output,) = llm.generate([TEXT.replace("\n", " ")], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    return np.array([entry.logprob for entry in output.prompt_logprobs if entry is not None])


@pytest.mark.model
def test_int8_moves_logprobs_little() -> None:
    """The largest of 64 normal values is about 2.6 standard deviations, so a step of int8, max / 127, is 0.02 of one; a
    step of bfloat16 is about 2^-7.5 of the value, 0.0055. int8's errors are then some four times as large as
    bfloat16's. Twice that is allowed, as real keys have larger outliers. Perplexity, in which errors cancel out, may
    move by 1 %: a bias would show there.
    """
    exact, bfloat16, int8 = (text_logprobs(dtype) for dtype in ("float32", "bfloat16", "int8"))
    assert len(exact) > 150
    cost, cost_of_bfloat16 = np.abs(int8 - exact).mean(), np.abs(bfloat16 - exact).mean()
    assert 0 < cost_of_bfloat16 < cost < 8 * cost_of_bfloat16
    assert abs(np.expm1(bfloat16.mean() - int8.mean())) < 0.01
