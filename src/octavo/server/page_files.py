"""The files of the chat page, by path."""

from __future__ import annotations

PAGE_FILES: dict[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/chat/page.css": ("page.css", "text/css; charset=utf-8"),
    "/chat/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/chat/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/chat/settings.js": ("settings.js", "text/javascript; charset=utf-8"),
    "/chat/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
    "/chat/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/chat/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Name in the folder `page`, and content type. They are the same for everybody and hold nothing of a server's, so that
they answer without a key: it is the page that asks for one."""
