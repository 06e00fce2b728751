"""What chat templates are given when requests say nothing: --default-chat-template-kwargs."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.config import HTTPConfig
from octavo.errors import ConfigError, RequestError
from octavo.server.openai.protocol import check_template_kwargs

_NAME = "default_chat_template_kwargs"


def template_defaults(http: HTTPConfig) -> dict[str, Any]:
    """By name, as `chat_template_kwargs` of a request.

    Raises:
        ConfigError: If a request could not hold them either.
    """
    text = http.default_chat_template_kwargs
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ConfigError(_NAME, text, "a JSON object") from None
    try:
        check_template_kwargs(values)
    except RequestError as error:
        raise ConfigError(_NAME, text, f"what chat_template_kwargs may be ({error})") from None
    return values
