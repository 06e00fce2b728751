"""Where the tests' data lies."""

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHARED = Path(os.environ.get("OCTAVO_TEST_DATA", TESTS.parents[1] / "shared" / "data"))
"""Data that licences keep out of this repository; what needs it is skipped where it is not."""
TINYSTORIES = TESTS / "data" / "tinystories-llama-280k"
