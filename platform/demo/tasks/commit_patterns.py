"""Notes on changes to a program, one sentence pattern each, and the parts that they may name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from loraplex.platform.demo.tasks.task import patterns

TRAIN_PATTERNS: Final = (
    *patterns(
        "feat",
        "Added a new {part}.",
        "We now support a {part} for every customer.",
        "Introduce a {part} that people can turn on.",
        "There is now a {part}, as many users asked for.",
        "Implemented the {part} from the roadmap.",
        "The {part} is a new feature in this version.",
        "Users can now choose their own {part}.",
        "First version of the {part}.",
        "It is now possible to have more than one {part}.",
        "Adds an option for the {part}.",
        "New: a {part} for teams.",
        "Customers get a {part} with this release.",
        "Allow people to create a {part} themselves.",
        "We built a {part} that many people wished for.",
        "Teams can now share their {part}.",
        "A {part} was added to the program.",
        "From today every user has a {part}.",
    ),
    *patterns(
        "fix",
        "Fixed a crash in the {part}.",
        "The {part} no longer shows an error.",
        "Resolved a bug that broke the {part}.",
        "The {part} was empty for some users, this is corrected.",
        "Correct a wrong value in the {part}.",
        "Repaired the {part}, which failed after the last update.",
        "The {part} works again.",
        "Solve the problem that the {part} did not open.",
        "Stop the {part} from failing on empty input.",
        "A mistake in the {part} was corrected.",
        "The {part} stopped working on Mondays; that bug is gone.",
        "Fixes the broken {part}.",
        "Handle a missing value that crashed the {part}.",
        "We fixed an error in the {part}.",
        "The {part} crashed on some phones; fixed.",
        "A bug made the {part} disappear, and this is solved.",
        "The {part} had stopped after the release and is repaired now.",
    ),
    *patterns(
        "docs",
        "Explain the {part} in the manual.",
        "Updated the documentation of the {part}.",
        "The guide now describes the {part}.",
        "Wrote a tutorial about the {part}.",
        "Correct a typo in the help text on the {part}.",
        "The README has a section on the {part}.",
        "Document how the {part} works.",
        "Added examples of the {part} to the handbook.",
        "Describe the {part} in more detail.",
        "The manual has a new chapter about the {part}.",
        "Rewrote the instructions for the {part}.",
        "Comments now explain the {part}.",
        "A better description of the {part} in the user guide.",
        "We wrote a page of the manual on the {part}.",
        "The help pages explain the {part} now.",
        "A new section on the {part} was added to the guide.",
        "The handbook tells how to use the {part}.",
    ),
    *patterns(
        "perf",
        "The {part} is twice as fast as before.",
        "Made the {part} much faster.",
        "The {part} now needs less memory.",
        "Speed up the {part} with a cache.",
        "Reduced the time that the {part} takes.",
        "The {part} loads in half the time.",
        "Less waiting for the {part}.",
        "Optimized the {part} for large customers.",
        "The slow {part} is quick now.",
        "Improve the speed of the {part}.",
        "The {part} answers in 20 ms rather than 90 ms.",
        "Cut the memory use of the {part}.",
        "The {part} is no longer slow with many users.",
        "We made the {part} faster for big teams.",
        "A cache speeds up the {part}.",
        "A new index makes the {part} fast.",
        "The {part} opens quickly now, even for large teams.",
    ),
    *patterns(
        "test",
        "Added tests for the {part}.",
        "The {part} is now covered by unit tests.",
        "Test the {part} with random input.",
        "More test cases for the {part}.",
        "The test of the {part} does not depend on the clock any more.",
        "Check the {part} in the nightly test run.",
        "Wrote an end-to-end test of the {part}.",
        "Raise the test coverage of the {part}.",
        "The tests of the {part} run in parallel.",
        "Add a test that opens the {part}.",
        "Property tests for the {part}.",
        "A missing test for the {part} was written.",
        "The test suite now includes the {part}.",
        "We wrote more tests for the {part}.",
        "New unit tests check the {part}.",
        "A new test checks that the {part} opens.",
        "There are two more tests for the {part}.",
    ),
)

HELD_OUT_PATTERNS: Final = (
    *patterns(
        "feat",
        "We added a {part} that users asked for.",
        "From now on people can have a new {part}.",
        "This version introduces the {part} as a new feature.",
        "People can now add their own {part}.",
    ),
    *patterns(
        "fix",
        "Fixed the bug that made the {part} crash.",
        "The error in the {part} is corrected.",
        "The {part} was broken after the update and works again now.",
        "Solved a bug: the {part} did not open for some users.",
    ),
    *patterns(
        "docs",
        "The documentation now explains the {part}.",
        "Added a chapter on the {part} to the user manual.",
        "Describe the {part} in the README.",
        "The user guide has a better explanation of the {part}.",
    ),
    *patterns(
        "perf",
        "The {part} is now three times faster.",
        "Made the {part} use less memory.",
        "Opening the {part} takes half the time it took before.",
        "A cache makes the {part} quick for large customers.",
    ),
    *patterns(
        "test",
        "We wrote new unit tests for the {part}.",
        "A test now covers the {part}.",
        "Run the tests of the {part} with random values.",
        "The {part} gets more test cases.",
    ),
)

TRAIN_PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "auth": (
            *("login page", "password reset", "login form", "session cookie", "access token"),
            *("sign-in button", "password check", "two-factor login", "user permission"),
        ),
        "billing": (
            *("invoice list", "payment form", "monthly invoice", "price table", "credit card form"),
            *("tax rate", "refund button", "payment history", "discount code"),
        ),
        "search": (
            *("search box", "search index", "result list", "search filter", "full-text search"),
            *("search history", "query parser", "result ranking", "saved search"),
        ),
        "mail": (
            *("newsletter", "welcome mail", "mail template", "e-mail footer", "mail queue"),
            *("weekly newsletter", "inbox view", "reminder mail", "e-mail attachment"),
        ),
        "maps": (
            *("map view", "route planner", "street map", "location marker", "map legend"),
            *("distance calculator", "satellite view", "map zoom", "walking route"),
        ),
        "photos": (
            *("photo album", "image upload", "picture gallery", "photo filter", "image editor"),
            *("photo slideshow", "thumbnail preview", "picture frame", "camera roll"),
        ),
    }
)

HELD_OUT_PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "auth": ("password form", "login token", "login button", "access permission"),
        "billing": ("invoice history", "payment page", "credit card list", "refund form"),
        "search": ("search page", "search ranking", "search query", "result filter"),
        "mail": ("mail footer", "e-mail template", "monthly newsletter", "mail view"),
        "maps": ("map marker", "route map", "street view", "location map"),
        "photos": ("photo gallery", "photo upload", "picture album", "image filter"),
    }
)
