"""Which request fields beyond the supported ones are taken, and with which values.

A field that would change the output and is not supported is refused, never ignored.
"""

from collections.abc import Mapping

NO_OP_FIELDS: Mapping[str, str] = {
    "user": "names the client's own end user",
    "safety_identifier": "names the client's own end user",
    "metadata": "labels for stored completions; none are stored",
    "store": "completions are not stored",
    "prompt_cache_key": "helps some clouds to find the prefix; here tokens alone say what is found",
    "prompt_cache_retention": "asks for time in the prefix cache; use alone says what stays",
    "prediction": "speeds up some engines; never changes the output",
    "parallel_tool_calls": "says how tools are called; there are none",
}
"""Accepted with any value: they do not change the output. The documentation has the same table."""

STREAM_NO_OP_FIELDS: Mapping[str, str] = {
    "include_obfuscation": "pads events against traffic analysis; TLS records are not padded",
}
"""The same for the fields of `stream_options`."""

UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Refused, except with these values, which are what the server does anyway, and null."""

UNSUPPORTED_MESSAGE_FIELDS: Mapping[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""The same for the fields of a message."""
