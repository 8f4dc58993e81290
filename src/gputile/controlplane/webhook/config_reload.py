"""The configuration in force: the last one in the file that was valid, followed while the webhook runs (U9)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError
from gputile.kube.config_file import read

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0


class ConfigReload:
    """What ``path`` says; None: the defaults, for ever. ``problem`` is why the file is not what is in force, or "".

    Raises:
        ConfigurationError: the file cannot be used to begin with.
    """

    def __init__(self, path: Path | None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._path = path
        self._sleep = sleep
        self.current = read(path) if path else Configuration()
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
            found = await asyncio.to_thread(read, self._path)
        except ConfigurationError as error:
            problem = f"configuration {self._path}: {error}; the one before it stays in force"
            if problem != self.problem:
                log.error(problem)
            self.problem = problem
            return
        self.problem = ""
        if found != self.current:
            self.current = found
            log.info("configuration read again", extra={"unit_mib": found.unit_mib})
