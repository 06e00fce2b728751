"""The HTTP server: OpenAI-compatible endpoints over an AsyncEngine."""
