"""Frames, endings and slot values of customer messages, apart for training and held-out."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from loraplex.platform.demo.tasks.names import CITIES, FIRST_NAMES, LAST_NAMES


@dataclass(frozen=True, slots=True)
class TicketWords:
    """The wording that one split may use around a ticket's pattern."""

    frames_by_content: tuple[tuple[str, ...], ...]
    endings: Mapping[str, tuple[str, ...]]
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    cities: tuple[str, ...]
    products: tuple[str, ...]


def _made_up(count: int, seed: str) -> tuple[str, ...]:
    rng = Random(seed)  # noqa: S311 - the same words on every machine, no secret
    words = []
    for _ in range(count):
        syllables = (
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
            for _ in range(rng.choice((1, 2, 2, 3)))
        )
        words.append("".join(syllables).capitalize())
    return tuple(words)


# A few made-up names, so that names which nobody has heard of are copied, too.
_ONSETS: Final = (
    *("b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n"),
    *("p", "pl", "pr", "qu", "r", "s", "sh", "sk", "st", "t", "tr", "v", "w", "y", "z"),
)
_VOWELS: Final = ("a", "a", "e", "e", "i", "i", "o", "o", "u", "y", "ai", "au", "ea", "ie", "ou")
_CODAS: Final = ("", "", "", "n", "n", "r", "r", "l", "s", "s", "m", "t", "ck", "nd", "x", "th")
_NOUNS: Final = (
    *("bowl", "table", "sweater", "drone", "pillow", "hammer", "vase", "scooter", "belt", "oven"),
    *("printer", "basket", "notebook", "carpet", "pan", "radio", "jar", "cabinet", "ladder"),
    *("wallet", "necklace", "curtain", "freezer", "skateboard", "telescope", "stroller", "piano"),
)
_ADJECTIVES: Final = ("steel", "red", "wooden", "travel", "baby", "paper", "glass", "solar", "dog")
_PRODUCTS: Final = (
    *_NOUNS,
    *(f"{adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS[::2]),
)

TRAIN_WORDS: Final = TicketWords(
    frames_by_content=(
        (
            "Hi, this is {name} from {city}. {body}",
            "My name is {name} and I live in {city}. {body}",
            "Hello, {name} from {city} here. {body}",
            "Dear team, I am {name}, a customer in {city}. {body}",
            "{body} Regards, {name}, {city}",
            "{body} {name} from {city}",
            "Hello, I live in {city} and my name is {name}. {body}",
        ),
        (
            "Hi, I am {name}. {body}",
            "Hello, my name is {name}. {body}",
            "This is {name}. {body}",
            "Good morning, {name} here. {body}",
            "{body} Best regards, {name}",
            "{body} Thanks, {name}",
        ),
        (
            "I am writing from {city}. {body}",
            "Hello from {city}! {body}",
            "I live in {city}. {body}",
            "{body} Regards from {city}",
        ),
        (
            "{body}",
            "Hello! {body}",
            "Hi there. {body}",
            "Good evening. {body}",
            "Dear shop, {body}",
        ),
    ),
    endings=MappingProxyType(
        {
            "high": (
                "This is urgent.",
                "Please hurry.",
                "I need an answer today.",
                "It cannot wait.",
                "Please act right away.",
                "I need this solved now.",
                "Please reply as soon as possible.",
                "Very urgent!",
                "I need help immediately.",
            ),
            "normal": (
                "",
                "",
                "",
                "Thank you.",
                "Please help me.",
                "What can I do?",
                "Can you look into it?",
                "I look forward to your answer.",
                "Please let me know.",
            ),
            "low": (
                "There is no hurry.",
                "Take your time.",
                "It is not urgent.",
                "No rush at all.",
                "Answer whenever you have time.",
                "It can wait until next week.",
                "I am not in a hurry.",
                "This is not pressing.",
            ),
        }
    ),
    first_names=(*FIRST_NAMES, *_made_up(20, "first names")),
    last_names=(*LAST_NAMES, *_made_up(30, "last names")),
    cities=(*CITIES, *_made_up(30, "cities")),
    products=(
        *("desk lamp", "coffee grinder", "garden chair", "water bottle", "phone case", "backpack"),
        *("wool blanket", "bread knife", "wall clock", "bike helmet", "rain jacket", "tea kettle"),
        *("yoga mat", "plant pot", "toaster", "tent", "guitar stand", "speaker", "keyboard"),
        *("camera bag", "sleeping bag", "picture frame", "mirror", "blender", "bookshelf"),
        *_PRODUCTS,
    ),
)

HELD_OUT_WORDS: Final = TicketWords(
    frames_by_content=(
        (
            "Good day, my name is {name}, from {city}. {body}",
            "I am {name} and I write to you from {city}. {body}",
            "Dear support, this is {name}, living in {city}. {body}",
            "{body} Kind regards, {name} from {city}",
        ),
        (
            "Good afternoon, I'm {name}. {body}",
            "Dear support, {name} is my name. {body}",
            "{body} Yours, {name}",
        ),
        (
            "Hi, I am a customer in {city}. {body}",
            "Greetings from {city}. {body}",
        ),
        (
            "Hey. {body}",
            "Dear support team, {body}",
            "Good afternoon! {body}",
        ),
    ),
    endings=MappingProxyType(
        {
            "high": (
                "It is really urgent.",
                "Please hurry up, I need it today.",
                "I need help right now.",
                "Please answer immediately.",
            ),
            "normal": ("", "", "Many thanks.", "Could you help me?", "Please tell me what to do."),
            "low": (
                "No hurry, thanks.",
                "This is not urgent at all.",
                "Please take your time, no rush.",
                "There is no need to hurry.",
            ),
        }
    ),
    first_names=("Lena", "Thomas", "Sofia", "Amir", "Hanna", "Felix", "Lucia", "Adam", "Emma"),
    last_names=("Martin", "Larsson", "Romano", "Becker", "Santos", "Clarke", "Petrov", "Ali"),
    # Cities whose tokens are the same after a blank and after a quote; what the model makes of
    # new ones that it must spell is measured apart, in docs/demo-adapters.md.
    cities=(
        *("Valencia", "Antalya", "Girona", "Dortmund", "Norwich", "Montpellier", "Limerick"),
        *("Catania", "Alicante", "Madison", "Siena", "Modena"),
    ),
    products=("floor lamp", "coffee machine", "suitcase", "winter jacket", "kitchen scale", "sofa"),
)
