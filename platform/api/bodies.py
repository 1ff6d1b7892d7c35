"""From the bytes of a request body to a checked schema; every fault is an `InvalidRequest`."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from loraplex.platform.api.faults import words_for
from loraplex.platform.api.fields import NO_OP_FIELDS, UNSUPPORTED_FIELDS
from loraplex.platform.errors import InvalidRequest

MAX_SHOWN_CHARS = 40
_PRIVATE_FIELDS = frozenset({"messages", "prompt", "stop", "suffix", "name", "refusal", "password"})
"""What a person typed is never repeated in an error."""


class Schema(BaseModel):
    """Base of request schemas: exact types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, fields: object) -> object:
        """Leave out unknown fields but the first: each would be noted, and only one is told."""
        if not isinstance(fields, dict):
            return fields
        known = cls.model_fields
        unknown = next((name for name in fields if name not in known), None)
        return {k: v for k, v in fields.items() if k in known or k == unknown}


S = TypeVar("S", bound=Schema)


def parse(body: bytes, schema: type[S]) -> S:
    """Read a body as `schema`; null is as absent. Raises InvalidRequest."""
    fields = {k: v for k, v in _json_object(body).items() if v is not None}
    for name in NO_OP_FIELDS:
        fields.pop(name, None)
    return _checked(without_defaults(fields, UNSUPPORTED_FIELDS, ""), schema)


def parse_exactly(body: bytes, schema: type[S]) -> S:
    """Read a body as `schema`, where null means null. Raises InvalidRequest."""
    fields = _json_object(body)
    for name, value in fields.items():
        if _holds_nul(value):  # PostgreSQL has no text with it
            raise InvalidRequest(f"{shown_name(name)}: must not hold U+0000.", shown_name(name))
    return _checked(fields, schema)


def parse_optional(body: bytes, schema: type[S]) -> S:
    """Read a body as `parse_exactly` does; an empty one says nothing. Raises InvalidRequest."""
    return parse_exactly(body or b"{}", schema)


def without_defaults(
    fields: dict[str, Any], unsupported: Mapping[str, tuple[object, ...]], path: str
) -> dict[str, Any]:
    """Drop unsupported fields that ask for nothing. Raises InvalidRequest for one that does."""
    for name in unsupported.keys() & fields.keys():
        if not any(_same(fields[name], default) for default in unsupported[name]):
            is_hidden = name in _PRIVATE_FIELDS or isinstance(fields[name], dict | list)
            value = "" if is_hidden else f"={shown(fields[name])}"
            raise InvalidRequest(
                f"{path}{name}{value} is not supported; leave {name} out.",
                f"{path}{name}",
                "unsupported_value",
            )
    return {k: v for k, v in fields.items() if k not in unsupported}


def shown(value: object) -> str:
    """A value as errors show it: short, and for anything structured only its kind."""
    match value:
        case dict():
            return "an object"
        case list():
            return f"an array of {len(value)}"
        case _:
            text = json.dumps(value)
            return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _checked(fields: dict[str, Any], schema: type[S]) -> S:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(
            f"The request body is not valid JSON in UTF-8: {error}.", None, "invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"The request body must be a JSON object, not {shown(value)}.", None, "invalid_json"
        )
    return value


def _holds_nul(value: object) -> bool:
    match value:
        case str():
            return "\0" in value
        case list():
            return any(map(_holds_nul, value))
        case dict():
            return any(map(_holds_nul, (*value, *value.values())))
        case _:
            return False


def _same(value: object, default: object) -> bool:
    """Equal as JSON, where true is not 1."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _invalid(error: ValidationError) -> InvalidRequest:
    """The first fault, in the API's words."""
    fault = error.errors(include_url=False)[0]
    path = _path(fault["loc"])
    if fault["type"] == "missing":
        return InvalidRequest(f"{path} {words_for(fault)}.", path, "missing_required_parameter")
    if fault["type"] == "extra_forbidden":
        return unknown_parameter(path)
    private = fault["loc"][0] in _PRIVATE_FIELDS and fault["loc"][-1] != "role"
    got = "" if private else f", not {shown(fault['input'])}"
    code = "unsupported_value" if fault["type"] == "unsupported_value" else "invalid_value"
    return InvalidRequest(f"{path}: {words_for(fault)}{got}.", path, code)


def unknown_parameter(path: str) -> InvalidRequest:
    """What is told of a field that the route does not know."""
    return InvalidRequest(
        f"{path} is not a parameter of this route; leave it out.", path, "unknown_parameter"
    )


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` for ("messages", 0, "content")."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{shown_name(part)}" if path else shown_name(part)
    return path


def shown_name(name: str) -> str:
    """The name of a field, which a client may have made up, as errors show it."""
    return name if len(name) <= MAX_SHOWN_CHARS else name[:MAX_SHOWN_CHARS] + "…"


def request_body_of(schema: type[Schema], *, required: bool = True) -> dict[str, Any]:
    """The OpenAPI description of a route that reads its body itself."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": required, "content": content}}
