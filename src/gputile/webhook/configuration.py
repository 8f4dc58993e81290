"""The configuration file, followed while it changes: a ConfigMap volume swaps it as a whole by a symbolic link (U9)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError, load_configuration

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0


class LiveConfiguration:
    """The configuration in force: the last one in the file that was valid. ``path`` None: the defaults, for ever.

    Raises:
        ConfigurationError, OSError: the file cannot be used to begin with.
    """

    def __init__(self, path: Path | None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._path = path
        self._sleep = sleep
        self._text = path.read_bytes() if path else b""
        self.current = parse(self._text)
        self.problem = ""

    async def run(self) -> None:
        """Look at the file again and again."""
        while True:
            await self._sleep(INTERVAL_SECONDS)
            await self.once()

    async def once(self) -> None:
        """Take over what the file says, if it has changed and is valid."""
        if self._path is None:
            return
        try:
            text = await asyncio.to_thread(self._path.read_bytes)
            if text == self._text:
                return
            self.current = parse(text)
        except (OSError, ConfigurationError) as error:
            problem = f"configuration {self._path}: {error}; the one before it stays in force"
            if problem != self.problem:
                log.error(problem)
            self.problem = problem
            return
        self._text, self.problem = text, ""
        log.info("configuration read again", extra={"unit_mib": self.current.unit_mib})


def parse(text: bytes) -> Configuration:
    """Return the configuration in a file's text.

    Raises:
        ConfigurationError: it is not one.
    """
    try:
        return load_configuration(yaml.load(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"not YAML: {error}") from error
