"""Messages that announce an event, with or without a time of day, and what they may name."""

from typing import Final

from loraplex.platform.demo.tasks.task import patterns

TIMED: Final = "timed"
ALL_DAY: Final = "all day"

TRAIN_PATTERNS: Final = (
    *patterns(
        TIMED,
        "Please add a {event} on {date} at {time}.",
        "The {event} is on {date} at {time}.",
        "Our next {event} starts at {time} on {date}.",
        "I have a {event} at {time} on {date}.",
        "Book a {event} with {name} for {date}, {time}.",
        "Reminder: {event} on {date} at {time} in {city}.",
        "Can you put the {event} in my calendar? It begins on {date} at {time}.",
        "{name} invited us to a {event} on {date}. It starts at {time}.",
        "On {date} at {time} there is a {event} in {city}.",
        "At {time} on {date} we have the {event} with {name}.",
        "We moved the {event} to {date}, {time}.",
        "Hi, the {event} will take place on {date} from {time} in room {number}.",
        "Don't forget the {event}: {date}, {time}.",
        "Are you free on {date}? There is a {event} at {time}.",
        "My {event} was changed, it is now on {date} at {time}.",
        "Set up a {event} for {number} people on {date} at {time}.",
        "Please note: {date}, {time}, {event} at the office.",
        "{name} has a {event} at {time}, on {date}.",
        "Come to the {event} in {city} on {date}, we begin at {time}.",
        "The date of the {event} is {date} and we start at {time}.",
        "See you at the {event} on {date}, {time}.",
        "I need a reminder for my {event} at {time} on {date}, thanks.",
        "They planned the {event} for {date} at {time}.",
        "Reserve {time} on {date} for a {event}.",
    ),
    *patterns(
        ALL_DAY,
        "Please add a {event} on {date}.",
        "The {event} is on {date}.",
        "Our next {event} takes place on {date}.",
        "On {date} I have a {event}.",
        "Book a {event} with {name} for {date}.",
        "Reminder: {event} on {date} in {city}.",
        "Can you put the {event} in my calendar? It is on {date}.",
        "{name} invited us to a {event} on {date}.",
        "On {date} there is a {event} in {city}.",
        "We have the {event} with {name} on {date}.",
        "We moved the {event} to {date}.",
        "Hi, the {event} will be on {date} in room {number}.",
        "Don't forget the {event}: {date}.",
        "Are you free on {date}? There is a {event}.",
        "My {event} was changed, it is now on {date}.",
        "Set up a {event} for {number} people on {date}.",
        "Please note: {date}, {event} at the office.",
        "{name} has a {event} on {date}, all day.",
        "Come to the {event} in {city} on {date}.",
        "The date of the {event} is {date}.",
        "See you at the {event} on {date}.",
        "I need a reminder for my {event} on {date}, thanks.",
        "They planned the {event} for {date}.",
        "Keep {date} free for a {event}.",
    ),
)

HELD_OUT_PATTERNS: Final = (
    *patterns(
        TIMED,
        "Could you schedule a {event} on {date} at {time}?",
        "We meet for the {event} on {date} at {time}.",
        "Just to confirm the {event} with {name} on {date} at {time}.",
        "There will be a {event} in {city} on {date}, starting at {time}.",
        "Good news: at {time} on {date} we can have our {event}.",
        "Hello, my {event} has been set for {date}, {time}.",
        "Please remind {name} of the {event} on {date} at {time}.",
    ),
    *patterns(
        ALL_DAY,
        "Could you schedule a {event} on {date}?",
        "We meet for the {event} on {date}.",
        "Just to confirm the {event} with {name} on {date}.",
        "There will be a {event} in {city} on {date}.",
        "Good news: on {date} we can have our {event}.",
        "Hello, my {event} has been set for {date}.",
        "Please remind {name} of the {event} on {date}.",
    ),
)

TRAIN_EVENTS: Final = (
    *("team lunch", "board meeting", "piano lesson", "yoga class", "birthday party", "workshop"),
    *("dentist visit", "sales call", "job interview", "book club", "product demo", "concert"),
    *("school play", "house viewing", "planning session", "budget review", "wedding", "picnic"),
    *("training day", "safety course", "phone call", "football game", "museum tour", "webinar"),
    *("coffee break", "staff meeting", "haircut", "parent meeting", "design review", "dinner"),
    *("flight", "medical check", "science fair", "city walk", "garden party", "conference"),
    *("language course", "data backup", "release party", "code review", "breakfast", "hike"),
    *("customer visit", "swimming lesson", "choir practice", "lecture", "press meeting"),
)

HELD_OUT_EVENTS: Final = (
    *("team dinner", "budget meeting", "guitar lesson", "sales workshop", "cooking class"),
    *("project review", "lunch", "theater visit", "garden tour"),
)
