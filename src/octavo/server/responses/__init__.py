"""OpenAI's Responses API, translated into chat completions and back."""
