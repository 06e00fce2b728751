"""The OpenAI-compatible API: requests, replies, and the errors between them."""
