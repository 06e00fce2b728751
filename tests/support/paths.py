"""Where the tests' data lies."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
TINYSTORIES = TESTS / "data" / "tinystories-llama-280k"
