"""Runs in a process of its own with one version of the openai client on its path.

Reads `{"url": …, "requests": [{"key", "body"}, …]}` from standard input, streams all requests at
once, and prints one result per request as JSON.
"""

import asyncio
import json
import sys

import openai


async def stream(url: str, key: str, body: dict) -> dict:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        answer = {"text": "", "finish_reason": None, "usage": None, "error": None}
        try:
            chunks = await client.chat.completions.create(
                **body, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in chunks:
                answer["model"] = chunk.model
                for choice in chunk.choices:
                    answer["text"] += choice.delta.content or ""
                    answer["finish_reason"] = choice.finish_reason or answer["finish_reason"]
                if chunk.usage is not None:
                    answer["usage"] = chunk.usage.model_dump(exclude_none=True)
        except openai.APIError as error:
            answer["error"] = {"class": type(error).__name__, "code": error.code}
        return answer


async def main() -> None:
    asked = json.load(sys.stdin)
    answers = await asyncio.gather(
        *(stream(asked["url"], request["key"], request["body"]) for request in asked["requests"])
    )
    json.dump({"version": openai.__version__, "answers": answers}, sys.stdout)


asyncio.run(main())
