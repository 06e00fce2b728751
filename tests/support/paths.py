"""Where the tests' data lies."""

from pathlib import Path

TINYSTORIES = Path(__file__).parents[1] / "data" / "tinystories-llama-280k"
