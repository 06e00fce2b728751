"""Files and batches of one server, where --files-dir gives them a place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp

from octavo.server.batches.files import FileStore
from octavo.server.batches.folder import Folder
from octavo.server.batches.store import BatchStore
from octavo.server.batches.worker import Worker
from octavo.server.context import ServerContext
from octavo.server.openai.errors import problem
from octavo.server.tenants import current_tenant


class Batching:
    """What the routes of files and batches share.

    Args:
        routes: The routes that lines may ask for, by path.

    Raises:
        ConfigError: If the folder cannot be used.
    """

    def __init__(self, context: ServerContext, routes: Mapping[str, ASGIApp]) -> None:
        self.context = context
        self.routes = routes
        self._parts: _Parts | None = None
        if context.http.files_dir is not None:
            self._parts = _Parts(context, routes, Folder(Path(context.http.files_dir)))

    @property
    def files(self) -> FileStore:
        return self._existing.files

    @property
    def batches(self) -> BatchStore:
        return self._existing.batches

    @property
    def worker(self) -> Worker:
        return self._existing.worker

    @property
    def _existing(self) -> _Parts:
        """Raises HTTPProblem where the server keeps no files."""
        if self._parts is None:
            message = "this server keeps no files: start it with --files-dir"
            raise problem(403, message, "files_not_configured", type="permission_error")
        return self._parts

    def start(self) -> None:
        """Go on with what an earlier server left. Call it in the event loop."""
        if self._parts is not None:
            for stored in self._parts.batches.unfinished:
                self._parts.worker.add(stored)

    async def stop(self) -> None:
        """Stop at once, and let another server have the folder."""
        if self._parts is not None:
            await self._parts.worker.stop()
            self._parts.folder.close()

    def tenant(self) -> str:
        """Whose request is being handled."""
        return current_tenant()


class _Parts:
    def __init__(self, context: ServerContext, routes: Mapping[str, ASGIApp], folder: Folder) -> None:
        self.folder = folder
        self.files = FileStore(folder, context.http)
        self.batches = BatchStore(folder)
        self.worker = Worker(context, routes, self.files, self.batches)
        unfinished = self.batches.unfinished
        own = {file_id for stored in unfinished for file_id in (stored.output_id, stored.error_id)}
        folder.sweep(self.files.ids | own)
        for stored in unfinished:
            self.files.in_use[stored.batch.input_file_id] += 1
