"""Anthropic's Messages API, translated into chat completions and back."""
