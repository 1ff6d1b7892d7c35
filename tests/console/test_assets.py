import hashlib
import json

import httpx
import pytest

from loraplex.platform.console.assets import STATIC

VENDORED = json.loads((STATIC / "vendored.json").read_text())


@pytest.mark.parametrize("name", VENDORED)
def test_what_others_wrote_is_byte_for_byte_what_they_published(name: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == VENDORED[name]["sha256"]


def test_every_file_is_ours_or_recorded_with_its_licence() -> None:
    ours = {"console.css", "console.js", "icon.svg", "overview.js", "playground.js"}
    there = {path.name for path in STATIC.iterdir()} - ours - {"vendored.json"}
    assert there == set(VENDORED)
    packages = {entry["package"] for entry in VENDORED.values()}
    licensed = {entry["package"] for entry in VENDORED.values() if entry["file"] == "LICENSE"}
    assert licensed == packages


async def test_browsers_keep_a_file_by_its_version_and_ask_again_without_one(
    http: httpx.AsyncClient,
) -> None:
    page = await http.get("/console/sign-in")
    address = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    answer = await http.get(address)
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    again = await http.get(address.partition("?")[0])
    assert again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["vendored.json", "..%2froute.py", "nothing.css"])
async def test_no_other_file_is_served(name: str, http: httpx.AsyncClient) -> None:
    assert (await http.get(f"/console/static/{name}")).status_code in {303, 404}
