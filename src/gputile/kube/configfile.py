"""The configuration as a component's pod has it: a file out of a ConfigMap, which changes while the component runs."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import yaml

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError, load_configuration

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


def read(path: Path) -> Configuration:
    """Return the configuration in the file.

    Raises:
        ConfigurationError: it cannot be read, is no YAML, or is not valid.
    """
    try:
        return load_configuration(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader))
    except OSError as error:
        raise ConfigurationError(error.strerror or str(error)) from error
    except yaml.YAMLError as error:
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
