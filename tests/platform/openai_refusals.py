"""Runs in a process of its own with one version of the openai client on its path.

Reads `{"url": …, "cases": {name: {"key", "times"}}}` from standard input, sends the requests of
each case at once with the client's own retries, and prints for each what came of it, as JSON.
"""

import asyncio
import json
import sys

import openai


async def ask(client: openai.AsyncOpenAI) -> list[str | None]:
    """Class and code of the error, or none."""
    try:
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=32
        )
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code]
    return [None, None]


async def main() -> None:
    asked = json.load(sys.stdin)
    answers = {}
    for name, case in asked["cases"].items():
        async with openai.AsyncOpenAI(base_url=f"{asked['url']}/v1", api_key=case["key"]) as client:
            answers[name] = await asyncio.gather(*(ask(client) for _ in range(case["times"])))
    json.dump({"version": openai.__version__, "answers": answers}, sys.stdout)


asyncio.run(main())
