"""What an answer's text holds: reasoning, words for the user, and tool calls. See `pieces` for the values."""
