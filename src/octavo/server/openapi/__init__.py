"""The description of the HTTP API, made from the types of its routes."""
