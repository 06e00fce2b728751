"""Tests of tokenizers against the libraries they come from."""
