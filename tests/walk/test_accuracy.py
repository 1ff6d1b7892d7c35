"""The demo's adapters are useful: right on held-out items where the base model is not."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from tests.walk.served import Served

from loraplex.platform.demo.accuracy import score
from loraplex.platform.demo.tasks.catalog import TASKS
from loraplex.platform.demo.tasks.task import Example, Task

CONCURRENCY = 16
NUM_BASE_ITEMS = 16
"""Enough to tell a model that knows nothing of the task, whose answers are the longest."""


async def answers(served: Served, task: Task, model: str, items: Sequence[Example]) -> list[str]:
    """Ask items of a task, some at a time."""
    free = asyncio.Semaphore(CONCURRENCY)
    headers = {"Authorization": f"Bearer {served.key(task.tenant)}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=300) as client:

        async def ask(messages: list[dict[str, str]]) -> str:
            body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 64}
            async with free:
                reply = await client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()["choices"][0]["message"]["content"]

        return await asyncio.gather(*(ask(item.messages) for item in items))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model)
async def test_an_adapter_answers_at_least_95_per_cent_of_held_out_items_exactly(
    served: Served, task: Task
) -> None:
    accuracy = score(task, await answers(served, task, task.model, task.held_out()))
    assert accuracy.fraction >= 0.95, accuracy.misses


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model)
async def test_the_base_model_alone_is_far_below(served: Served, task: Task) -> None:
    items = task.held_out()[:NUM_BASE_ITEMS]
    given = await answers(served, task, served.base_model, items)
    right = [item for item, text in zip(items, given, strict=True) if text.strip() == item.answer]
    assert len(right) / len(items) <= 0.2
