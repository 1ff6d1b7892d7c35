"""Signing in with a password: whom that admits, and how often it may be tried."""

import asyncio
import re
from dataclasses import replace

import httpx
import pytest
from argon2 import PasswordHasher
from tests.console.platform import ConsolePlatform, cheap_passwords, console_platform
from tests.console.signing_in import PASSWORD, START_S, add, stored

from loraplex.platform.console.throttle import SignInThrottle, TooManyAttempts, counted_by
from loraplex.platform.settings import Settings
from loraplex.tenants.errors import SignInRefused
from loraplex.tenants.passwords import Passwords


async def test_a_person_signs_in_with_a_password_and_does_not_with_another(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await add(fresh, "ada@example.org", PASSWORD, "owner")
    form = {"email": "Ada@example.org", "password": PASSWORD + "!", "next": "/console/tenants"}
    answer = await http.post("/console/sign-in", data=form)
    assert answer.status_code == 401
    assert "E-mail address or password is not right." in answer.text
    assert PASSWORD not in answer.text
    answer = await http.post("/console/sign-in", data=form | {"password": PASSWORD})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/tenants")
    page = await http.get("/console/tenants")
    assert "ada@example.org" in page.text
    assert (await stored(fresh, "ada@example.org")).signed_in_at is not None


async def test_attempts_at_once_are_no_more_than_attempts_in_a_row(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    fresh.clock.fixed_s = START_S

    async def guess(number: int) -> int:
        form = {"email": " ADA@example.org", "password": f"guess number {number}"}
        return (await http.post("/console/sign-in", data=form)).status_code

    assert sorted(await asyncio.gather(*map(guess, range(12)))) == [401] * 5 + [429] * 7
    fresh.clock.fixed_s += 60
    assert await guess(12) == 401


async def test_who_may_sign_in_gets_no_more_guesses_at_others_by_it(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    fresh.clock.fixed_s = START_S
    await add(fresh, "own@example.org", PASSWORD)
    told = []
    for number in range(21):
        own = {"email": "own@example.org", "password": PASSWORD}
        answer = await http.post("/console/sign-in", data=own)
        assert answer.status_code == 303 if number < 20 else 429
        guess = {"email": f"other{number}@example.org", "password": "guess of a password"}
        told.append((await http.post("/console/sign-in", data=guess)).status_code)
    assert told == [401] * 20 + [429]


async def test_whoever_tries_an_account_does_not_keep_its_owner_out() -> None:
    throttle = SignInThrottle(lambda: START_S)

    def attempt(address: str, *, is_right: bool = False) -> None:
        with throttle.attempt(counted_by(address, "ada@example.org")):
            if not is_right:
                raise SignInRefused

    for _ in range(5):
        with pytest.raises(SignInRefused):
            attempt("198.51.100.7")
    with pytest.raises(TooManyAttempts):
        attempt("198.51.100.7", is_right=True)
    attempt("192.0.2.1", is_right=True)
    for number in range(45):
        with pytest.raises(SignInRefused):
            attempt(f"203.0.113.{number}")
    with pytest.raises(TooManyAttempts) as refused:  # from everywhere, there is an end as well
        attempt("192.0.2.1", is_right=True)
    assert refused.value.wait_s == 60


async def test_no_connection_of_the_database_is_held_while_a_password_is_compared(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    held = []

    class Watching(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002  argon2's name
            held.append(fresh.resources.database._engine.pool.checkedout())  # type: ignore[attr-defined]  # wrong on purpose, or replaced for the test
            return super().verify(hash, password)

    state = fresh.app.state
    watched = Passwords(Watching(time_cost=1, memory_cost=64, parallelism=1))
    state.services = replace(state.services, passwords=watched)
    await add(fresh, "ada@example.org", PASSWORD)
    form = {"email": "ada@example.org", "password": PASSWORD}
    assert (await http.post("/console/sign-in", data=form)).status_code == 303
    page = await http.get("/console/account")
    csrf = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert csrf
    form = {"csrf": csrf[1], "current": PASSWORD, "password": "another long password"}
    assert (await http.post("/console/account/password", data=form)).status_code == 303
    assert held == [0, 0]


async def test_more_passwords_than_can_wait_are_told_to_come_again(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    state = fresh.app.state
    full = replace(cheap_passwords(), places=asyncio.Semaphore(0))
    state.services = replace(state.services, passwords=full)
    form = {"email": "ada@example.org", "password": PASSWORD}
    answer = await http.post("/console/sign-in", data=form)
    assert answer.status_code == 503
    assert "try again" in answer.text


async def test_several_gateways_know_one_session(
    fresh: ConsolePlatform, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cookie = {"lpx_session": await fresh.open_session()}
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("second"),
        database_url=fresh.resources.settings.resolved_database_url,
    )
    folder = settings.data_dir
    async with (
        console_platform(folder, lifespan=False, settings=settings) as second,
        httpx.AsyncClient(base_url=second.root, cookies=cookie) as http,
    ):
        assert (await http.get("/console/tenants")).status_code == 200
