"""Faults that pydantic finds, in this API's words."""

from collections.abc import Mapping

from pydantic_core import ErrorDetails

_WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs {min_length} or more",
    "too_long": "holds too many; at most {max_length} are possible",
    "string_too_short": "needs {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""By pydantic's type of the fault; its own words speak of Python."""


def words_for(fault: ErrorDetails) -> str:
    """What is wrong, to be read behind the field's name. Faults of our own have words already."""
    words = _WORDS.get(fault["type"])
    if words is None:
        return fault["msg"]
    return words.format(**{name: _bound(value) for name, value in fault.get("ctx", {}).items()})


def _bound(value: object) -> object:
    """A bound as a person writes it: 2 and not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
