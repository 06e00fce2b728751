"""What the paper says: Kwon et al., SOSP 2023 (arXiv 2309.06180), the figures' numbers in one place.

None of these is a number of ours, and none enters a simulation. Source marks: P, the paper's text or tables; F, third
parties' transcriptions of its pictures (a bar's label is exact, a curve read by eye is not); AE, the run scripts of the
authors' public artifact; V, a third party's check of the paper's vector pictures.
"""

from __future__ import annotations

from typing import NamedTuple


class Quoted(NamedTuple):
    """A number of the paper's."""

    value: float
    source: str
    """P, F, AE or V; see above."""


class QuotedRange(NamedTuple):
    low: float
    high: float
    source: str

    def words(self, unit: str) -> str:
        """For a table."""
        return f"{self.low:g}{unit} to {self.high:g}{unit} [{self.source}]"


PAGED, ORACLE, POW2, MAX, FASTER_TRANSFORMER = "paged", "orca-oracle", "orca-pow2", "orca-max", "fastertransformer"
SYSTEMS = (PAGED, ORACLE, POW2, MAX, FASTER_TRANSFORMER)
"""Best first, as the paper ranks them."""
NAMES = {
    PAGED: "paged",
    ORACLE: "Orca (Oracle)",
    POW2: "Orca (Pow2)",
    MAX: "Orca (Max)",
    FASTER_TRANSFORMER: "FasterTransformer",
}
"""In words. The paper's own system is vLLM; in its place stands Octavo's paged KV memory."""

TOKENS, RESERVED, INTERNAL, REST = "token states", "reservation", "internal fragmentation", "external and others"
MEMORY_STATES = (TOKENS, RESERVED, INTERNAL, REST)

FIG2: dict[str, dict[str, Quoted]] = {
    MAX: {
        TOKENS: Quoted(20.4, "P"),
        RESERVED: Quoted(13.3, "F"),
        INTERNAL: Quoted(57.3, "F"),
        REST: Quoted(8.9, "F"),
    },
    POW2: {
        TOKENS: Quoted(26.8, "F"),
        RESERVED: Quoted(17.9, "F"),
        INTERNAL: Quoted(13.6, "F"),
        REST: Quoted(41.6, "F"),
    },
    ORACLE: {
        TOKENS: Quoted(38.2, "P"),
        RESERVED: Quoted(25.2, "F"),
        INTERNAL: Quoted(0.0, "F"),
        REST: Quoted(36.6, "F"),
    },
    PAGED: {TOKENS: Quoted(96.3, "P")},
}
"""Figure 2, % of KV memory. OPT-13B, ShareGPT. For its own system the paper has one number besides the token states:
3.7 % for all that is left."""

FIG12_RATIOS: dict[str, QuotedRange] = {
    ORACLE: QuotedRange(1.7, 2.7, "P"),
    MAX: QuotedRange(2.7, 8.0, "P"),
    FASTER_TRANSFORMER: QuotedRange(1.0, 22.0, "P"),
}
"""Section 6.2, ShareGPT: requests per second of the paged system over those of the other at similar latency, over all
three models. For FasterTransformer it says "up to 22"."""

FIG12_KNEES: dict[str, dict[str, Quoted]] = {
    "a": {
        PAGED: Quoted(1.9, "F"),
        ORACLE: Quoted(1.1, "F"),
        POW2: Quoted(0.75, "F"),
        MAX: Quoted(0.5, "F"),
        FASTER_TRANSFORMER: Quoted(0.3, "F"),
    },
    "c": {
        PAGED: Quoted(2.4, "F"),
        ORACLE: Quoted(1.8, "F"),
        POW2: Quoted(1.5, "F"),
        MAX: Quoted(1.0, "F"),
        FASTER_TRANSFORMER: Quoted(0.5, "F"),
    },
    "d": {PAGED: Quoted(28, "F"), ORACLE: Quoted(20, "F"), POW2: Quoted(13, "F")},
}
"""Panel -> requests per second at which a curve turns up. Read from the picture by eye, so good to 10 or 20 %."""

FIG13: dict[str, dict[str, Quoted]] = {
    "sharegpt": {
        MAX: Quoted(7.00, "F"),
        POW2: Quoted(9.81, "F"),
        ORACLE: Quoted(13.62, "F"),
        PAGED: Quoted(30.42, "F"),
    },
    "alpaca": {
        MAX: Quoted(7.00, "F"),
        POW2: Quoted(43.24, "F"),
        ORACLE: Quoted(72.75, "F"),
        PAGED: Quoted(132.44, "F"),
    },
}
"""Figure 13, requests in a batch on average. OPT-13B; ShareGPT at 2 requests/s, Alpaca at 30."""

FIG14_RATIOS: dict[str, Quoted] = {"basic": Quoted(1.3, "P"), "beam 6": Quoted(2.3, "P")}
"""Section 6.3, OPT-13B, Alpaca: the paged system over Orca (Oracle); the text gives the two ends."""

FIG15: dict[str, dict[int, Quoted]] = {
    "parallel": {2: Quoted(6.09, "F"), 4: Quoted(8.53, "F"), 6: Quoted(9.79, "F")},
    "beam": {2: Quoted(37.56, "F"), 4: Quoted(53.13, "F"), 6: Quoted(55.16, "F")},
}
"""Figure 15, % of KV memory saved by sharing, by samples or beam width. OPT-13B, Alpaca."""

FIG15_SHAREGPT: dict[str, QuotedRange] = {
    "parallel": QuotedRange(16.2, 30.5, "P"),
    "beam": QuotedRange(44.3, 66.3, "P"),
}

FIG16_RATIOS: dict[str, Quoted] = {"1-shot": Quoted(1.67, "P"), "5-shot": Quoted(3.58, "P")}
"""Section 6.4, LLaMA-13B, translation with a shared prefix: the paged system over Orca (Oracle)."""

FIG17_RATIO = Quoted(2.0, "P")
"""Section 6.5, OPT-13B, chat: the paged system over each of the three Orcas."""

FIG18A_SLOWER = QuotedRange(20.0, 26.0, "P")
"""Section 7.1, %: how much longer the paged attention kernel takes than FasterTransformer's. V finds that it holds at
batch size 32 only."""

FIG18B_BEST: dict[str, tuple[int, ...]] = {"sharegpt": (16, 32, 64, 128), "alpaca": (16, 32)}
"""Section 7.2 (P): block sizes with the best latency."""

FIG19_RECOMPUTE_AT_MOST = Quoted(20.0, "P")
"""Section 7.3, %: recomputation is never slower than swapping by more. V: true of the picture as "at most about"."""
FIG19_COMPARABLE = (16, 32, 64)
"""Section 7.3 (P): block sizes at which the two are comparable end to end."""
