"""The configuration as a component's pod has it: a file out of a ConfigMap, which changes while the component runs."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError, load_configuration
from gputile.support.yaml_loader import DocumentError, load_document

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


def read(path: Path) -> Configuration:
    """Return the configuration in the file.

    Raises:
        ConfigurationError: it cannot be read, is no YAML, or is not valid.
    """
    try:
        return load_configuration(parse(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(error.strerror or str(error)) from error


def parse(content: str | bytes) -> Any:
    """Return what a configuration's text holds, which is still to be checked.

    Raises:
        ConfigurationError: it is no YAML.
    """
    try:
        return load_document(content)
    except DocumentError as error:
        raise ConfigurationError(f"not YAML: {error}") from error


async def follow(
    path: Path | None,
    in_force: Configuration,
    take: Callable[[Configuration], None],
    every: float = LOOK_EVERY_S,
) -> None:
    """Call ``take`` whenever the file says something else than what is ``in_force``; look every so many seconds.

    What is not valid is logged once, and the configuration in force stays.
    """
    complaint = ""
    while path is not None:
        await asyncio.sleep(every)
        try:
            found = read(path)
        except ConfigurationError as error:
            if str(error) != complaint:
                complaint = str(error)
                log.error("configuration %s is not taken in: %s", path, error)
            continue
        complaint = ""
        if found != in_force:
            in_force = found
            log.info("configuration %s has changed", path)
            take(found)
