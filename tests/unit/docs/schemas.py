"""What gputile prints and what people write, held against the schemas that it ships."""

import json
from functools import cache
from typing import Any

from docs.generator.schemas import PLACES


@cache
def validator(name: str) -> Any:
    """Return the validator of a schema, as it is shipped."""
    from jsonschema import Draft202012Validator  # takes a second, in each process that only collects tests, too

    schema = json.loads((PLACES[0] / f"{name}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def mistakes(name: str, value: Any) -> list[str]:
    """Return what of a value does not go with a schema."""
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(value)]


def answer(name: str, text: str) -> Any:
    """Return the JSON in a command's output, which goes with a schema, and has no key that the schema does not know."""
    value = json.loads(text)
    assert mistakes(name, value) == []
    assert _unknown(name, value) == []
    return value


def _unknown(name: str, value: Any) -> list[str]:
    schema = json.loads(json.dumps(validator(name).schema))
    for part in schema["$defs"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return [error.message for error in type(validator(name))(schema).iter_errors(value)]
