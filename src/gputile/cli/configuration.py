"""Reading the configuration file that several commands take."""

from pathlib import Path

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError, load_configuration
from gputile.cli.output import fail


def read_configuration(path: Path | None) -> Configuration:
    """Return the configuration in the file, the defaults where there is none; leave the program where it is wrong."""
    if path is None:
        return Configuration()
    import yaml

    try:
        return load_configuration(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader))
    except OSError as error:
        fail(f"configuration {path}: {error.strerror}")
    except yaml.YAMLError as error:
        fail(f"configuration {path}: not YAML: {error}")
    except ConfigurationError as error:
        fail(f"configuration {path}: {error}")
