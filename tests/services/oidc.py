"""A small OpenID Connect issuer on a socket: discovery, keys, codes with PKCE, ID tokens.

It is as strict as real ones are: a code is for one client, one redirect and one verifier, and is
taken once. What it says in a token can be bent, so that tests see what is not believed.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

Claims = dict[str, Any]
RSA_BITS = 2048


@dataclass
class Issuer:
    """The issuer, who is signed in at it, and how it errs."""

    root: str
    client_id: str = "loraplex"
    client_secret: str | None = "a secret / of both, long enough to sign with"
    now: Callable[[], float] = lambda: 0.0
    subject: str = "sub-1"
    user: Claims = field(default_factory=dict)
    """Claims of whoever is signed in."""
    in_userinfo: Claims = field(default_factory=dict)
    bend: Callable[[Claims], Claims] = lambda claims: claims
    """What becomes of the claims before they are signed."""
    algorithm: str = "RS256"
    document: Claims = field(default_factory=dict)
    """Laid over the discovery document."""
    is_down: bool = False
    asked: list[str] = field(default_factory=list)
    """Paths, in order."""
    _keys: list[Any] = field(default_factory=list)
    _codes: dict[str, Claims] = field(default_factory=dict)

    def rotate(self) -> None:
        """Sign by a new key from now on; the old one is gone."""
        kid = secrets.token_hex(4)
        self._keys = [
            RSAKey.generate_key(RSA_BITS, {"kid": f"r{kid}", "use": "sig"}),
            ECKey.generate_key("P-256", {"kid": f"e{kid}", "use": "sig"}),
        ]

    def app(self) -> Starlette:
        routes = [
            Route("/.well-known/openid-configuration", self._discover),
            Route("/keys", self._list_keys),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/userinfo", self._userinfo),
        ]
        return Starlette(routes=routes)

    async def _discover(self, request: Request) -> Response:
        return self._noting(
            request,
            {
                "issuer": self.root,
                "authorization_endpoint": f"{self.root}/authorize",
                "token_endpoint": f"{self.root}/token",
                "jwks_uri": f"{self.root}/keys",
                **({"userinfo_endpoint": f"{self.root}/userinfo"} if self.in_userinfo else {}),
                **self.document,
            },
        )

    async def _list_keys(self, request: Request) -> Response:
        return self._noting(request, {"keys": [k.as_dict(private=False) for k in self._keys]})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == self.client_id
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.root}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 303)

    async def _token(self, request: Request) -> Response:
        form = {k: v[0] for k, v in parse_qs((await request.body()).decode()).items()}
        if not self._knows(request, form):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        answer = {"access_token": "at", "token_type": "Bearer", "id_token": self._sign(asked)}
        return self._noting(request, answer)

    async def _userinfo(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer at"
        return self._noting(request, {"sub": self.subject, **self.in_userinfo})

    def _knows(self, request: Request, form: dict[str, str]) -> bool:
        if self.client_secret is None:
            return form["client_id"] == self.client_id
        given = base64.b64decode(request.headers["authorization"].partition(" ")[2]).decode()
        return given == f"{self.client_id}:{self.client_secret}"

    def _sign(self, asked: Claims) -> str:
        now_s = int(self.now())
        claims = self.bend(
            {
                "iss": self.root,
                "aud": self.client_id,
                "sub": self.subject,
                "iat": now_s,
                "exp": now_s + 300,
                "nonce": asked["nonce"],
                **self.user,
            }
        )
        if self.algorithm == "none":
            parts = (json.dumps({"alg": "none"}), json.dumps(claims))
            return (
                ".".join(base64.urlsafe_b64encode(p.encode()).rstrip(b"=").decode() for p in parts)
                + "."
            )
        key = self._keys[self.algorithm == "ES256"]
        header = {"alg": self.algorithm, "kid": key.kid}
        if self.algorithm == "HS256":
            assert self.client_secret is not None
            return jwt.encode(header, claims, OctKey.import_key(self.client_secret), ["HS256"])
        return jwt.encode(header, claims, key)

    def _noting(self, request: Request, answer: Claims) -> Response:
        self.asked.append(request.url.path)
        return JSONResponse({"error": "down"}, 503) if self.is_down else JSONResponse(answer)


@asynccontextmanager
async def running_issuer() -> AsyncIterator[Issuer]:
    """An issuer on loopback that ends with the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    issuer = Issuer(f"http://{host}:{port}")
    issuer.rotate()
    config = uvicorn.Config(issuer.app(), log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield issuer
    server.should_exit = True
    await serving
    listener.close()


async def go_through(url: str) -> str:
    """What a browser does at the issuer, where somebody is signed in; the way back."""
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(url)
    assert answer.status_code == 303, answer.text
    parts = urlsplit(answer.headers["location"])
    return f"{parts.path}?{parts.query}"
