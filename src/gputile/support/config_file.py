"""Reads a component's configuration file, and reloads it when it changes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import Configuration, load_configuration
from gputile.api.quantity import MIB
from gputile.support.files import read_bounded, read_whole
from gputile.support.yaml_loader import DocumentError, load_document

log = logging.getLogger(__name__)

RELOAD_EVERY_S = 5.0
MOST_BYTES = 4 * MIB  # a ConfigMap has 1 MiB at most


class ConfigFile:
    """The configuration in force, which is the last valid content of the file.

    Without a ``path`` the configuration never changes. ``problem`` is the reason why the file's
    content is not in force. It is None if the content is in force. ``changed`` is called with each
    new configuration.
    """

    def __init__(
        self,
        path: Path | None,
        current: Configuration,
        changed: Callable[[Configuration], None] = lambda _: None,
    ) -> None:
        self.current = current
        self.problem: str | None = None
        self._path = path
        self._changed = changed
        self._content: bytes | None = None  # the content that was last read

    async def run(self, every: float = RELOAD_EVERY_S) -> None:
        """Poll the file until cancelled. Without a file, return at once."""
        while self._path is not None:
            await asyncio.sleep(every)
            await self.reload()

    async def reload(self) -> None:
        """Apply the file if it has changed and is valid. An invalid file is logged once."""
        if self._path is None:
            return
        try:
            content = read_whole(self._path, MOST_BYTES)
            if content == self._content:
                return
            self._content = content
            document = await asyncio.to_thread(parse, content)
            if document is None and self.current != Configuration():
                # To return to the defaults, a file must set at least one default explicitly.
                raise ConfigurationError("it is empty")
            found = await asyncio.to_thread(load_configuration, document)
        except OSError as error:
            self._content = None
            self._refuse(error.strerror or str(error))
        except ConfigurationError as error:
            self._refuse(str(error))
        else:
            self.problem = None
            if found != self.current:
                self.current = found
                log.info(
                    "configuration %s has changed", self._path, extra={"unit_mib": found.unit_mib}
                )
                self._changed(found)

    def _refuse(self, why: str) -> None:
        problem = (
            f"configuration {self._path} is not applied: {why}; the previous one stays in force"
        )
        if problem != self.problem:
            log.error(problem)
        self.problem = problem


def read(path: Path) -> Configuration:
    """Return the configuration in the file.

    Raises:
        ConfigurationError: the file cannot be read, is not YAML, or is not valid.
    """
    try:
        return load_configuration(parse(read_bounded(path, MOST_BYTES)))
    except OSError as error:
        raise ConfigurationError(error.strerror or str(error)) from error


def parse(content: str | bytes) -> Any:
    """Parse a configuration's text without validating the value.

    Raises:
        ConfigurationError: the text is not YAML.
    """
    try:
        return load_document(content)
    except DocumentError as error:
        raise ConfigurationError(str(error)) from error
