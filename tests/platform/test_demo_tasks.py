"""The demo's tasks: repeatable, honest about held-out items, with answers that parse."""

import json
import re
import sqlite3
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from random import Random

import pytest

from loraplex.platform import demo
from loraplex.platform.demo.accuracy import measure, score
from loraplex.platform.demo.base import DEMO_MODEL_NAME
from loraplex.platform.demo.tasks.acme_support import SUPPORT
from loraplex.platform.demo.tasks.acme_triage import TRIAGE
from loraplex.platform.demo.tasks.calendar_patterns import HELD_OUT_EVENTS, TRAIN_EVENTS
from loraplex.platform.demo.tasks.catalog import TASKS
from loraplex.platform.demo.tasks.commit_patterns import HELD_OUT_PARTS, TRAIN_PARTS
from loraplex.platform.demo.tasks.globex_extract import EXTRACT
from loraplex.platform.demo.tasks.globex_sql import SCHEMA, SQL
from loraplex.platform.demo.tasks.initech_calendar import CALENDAR
from loraplex.platform.demo.tasks.initech_commit import COMMIT
from loraplex.platform.demo.tasks.task import Example, Message, Task
from loraplex.platform.demo.tasks.ticket_words import HELD_OUT_WORDS, TRAIN_WORDS

ADAPTERS = Path(next(iter(demo.__path__))) / "adapters"
SHIPPED_BYTES = 16_000_000

each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model)


def drawn(task: Task, count: int = 300) -> list[Example]:
    rng = Random(7)
    return [task.train(rng) for _ in range(count)]


@each_task
def test_same_seed_same_examples(task: Task) -> None:
    assert drawn(task) == drawn(task)
    assert task.held_out() == task.held_out()
    assert len({example.prompt for example in drawn(task)}) > 200


@each_task
def test_held_out_patterns_are_new(task: Task) -> None:
    train = {pattern.text for pattern in task.train_patterns}
    held_out = {pattern.text for pattern in task.held_out_patterns}
    assert len(train) >= 25
    assert train.isdisjoint(held_out)
    assert {p.kind for p in task.train_patterns} == {p.kind for p in task.held_out_patterns}


def test_held_out_words_around_tickets_are_new() -> None:
    for name in ("first_names", "last_names", "cities", "products"):
        assert set(getattr(TRAIN_WORDS, name)).isdisjoint(getattr(HELD_OUT_WORDS, name))
    frames = [
        {f for group in w.frames_by_content for f in group} for w in (TRAIN_WORDS, HELD_OUT_WORDS)
    ]
    assert frames[0].isdisjoint(frames[1])
    for priority, endings in HELD_OUT_WORDS.endings.items():
        assert set(endings) & set(TRAIN_WORDS.endings[priority]) <= {""}


@each_task
def test_held_out_items_are_enough_and_short(task: Task) -> None:
    items = task.held_out()
    assert len({item.prompt for item in items}) == len(items) >= 40
    assert {item.prompt for item in items}.isdisjoint(item.prompt for item in drawn(task, 2000))
    assert max(len(item.prompt) for item in items) < 250
    assert max(len(item.answer) for item in items) < 160
    assert not any("{" in item.prompt for item in items)


def test_extract_answers_are_json_of_facts_in_the_message() -> None:
    for item in [*drawn(EXTRACT), *EXTRACT.held_out()]:
        facts = json.loads(item.answer)
        assert list(facts) == ["name", "city", "order", "product"]
        for fact in facts.values():
            assert fact is None or str(fact) in item.prompt


def test_sql_answers_run_on_the_schema() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    for item in [*drawn(SQL), *SQL.held_out()]:
        database.execute(item.answer).fetchall()
    database.close()


def test_support_answers_have_three_lines_and_triage_one_label() -> None:
    for item in [*drawn(SUPPORT), *SUPPORT.held_out()]:
        heads = [line.partition(": ")[0] for line in item.answer.splitlines()]
        assert heads == ["Category", "Priority", "Reply"]
        assert "None" not in item.answer
    labels = {item.answer for item in TRIAGE.held_out()}
    assert labels == {pattern.kind for pattern in TRIAGE.train_patterns}


def test_calendar_answers_are_a_date_a_time_and_an_event_of_the_message() -> None:
    for item in [*drawn(CALENDAR), *CALENDAR.held_out()]:
        day_text, time, event = item.answer.split(" ", maxsplit=2)
        day = date.fromisoformat(day_text)
        assert str(day.year) in item.prompt
        assert f"{day:%b}" in item.prompt
        assert time == "all-day" or time.removeprefix("0") in item.prompt
        assert (time == "all-day") == (re.search(r"\d:\d\d", item.prompt) is None)
        assert f" {event}" in item.prompt


def test_commit_answers_are_a_type_and_a_scope_and_held_out_parts_are_new() -> None:
    types = {pattern.kind for pattern in COMMIT.train_patterns}
    assert set(TRAIN_PARTS) == set(HELD_OUT_PARTS)
    possible = {f"{kind}({scope})" for kind in types for scope in TRAIN_PARTS}
    assert {item.answer for item in drawn(COMMIT)} == possible
    assert {item.answer for item in COMMIT.held_out()} <= possible
    for scope, parts in TRAIN_PARTS.items():
        assert set(parts).isdisjoint(HELD_OUT_PARTS[scope])
    assert set(TRAIN_EVENTS).isdisjoint(HELD_OUT_EVENTS)


@each_task
def test_measure_asks_for_the_adapter_unless_told_otherwise(task: Task) -> None:
    answers = {item.prompt: item.answer for item in task.held_out()}

    def complete(model: str, messages: Sequence[Message]) -> str:
        return f" {answers[messages[-1]['content']]}\n" if model == task.model else "no idea"

    assert measure(task, complete).fraction == 1
    assert measure(task, complete, model=DEMO_MODEL_NAME).fraction == 0


def test_score_lists_each_miss() -> None:
    items = TRIAGE.held_out()
    accuracy = score(TRIAGE, ["nonsense", *(item.answer for item in items[1:])])
    assert [miss.prompt for miss in accuracy.misses] == [items[0].prompt]
    assert accuracy.fraction == pytest.approx(1 - 1 / len(items))
    with pytest.raises(ValueError, match="shorter"):
        score(TRIAGE, ["too few"])


@each_task
def test_shipped_adapter_follows_its_recipe(task: Task) -> None:
    folder = ADAPTERS / task.tenant / task.name
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == DEMO_MODEL_NAME
    assert config["inference_mode"] is True
    assert (config["r"], config["lora_alpha"]) == (task.recipe.rank, task.recipe.alpha)
    assert config["use_rslora"] is task.recipe.use_rslora
    assert config["rank_pattern"] == dict(task.recipe.rank_pattern)
    assert config["alpha_pattern"] == dict(task.recipe.alpha_pattern)
    assert set(config["target_modules"]) == set(task.recipe.target_modules)
    assert config["lora_dropout"] == 0
    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_shipped_adapters_differ_as_a_platforms_adapters_do() -> None:
    recipes = [task.recipe for task in TASKS]
    assert len(TASKS) >= 6
    assert len({task.tenant for task in TASKS}) >= 3
    assert {4, 8, 16, 32} <= {recipe.rank for recipe in recipes}
    assert any(recipe.use_rslora for recipe in recipes)
    assert any(recipe.rank_pattern for recipe in recipes)


def test_shipped_adapters_are_small() -> None:
    files = [path for path in ADAPTERS.rglob("*") if path.is_file()]
    assert len(files) == 2 * len(TASKS)
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES
