"""One issuer of identities: where its endpoints are, and the keys that it signs with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from loraplex.platform.oidc.errors import IssuerUnavailable

TIMEOUT_S = 5.0
DOCUMENT_S = 3600.0
"""How long the issuer's document and keys are believed."""
KEYS_EVERY_S = 10.0
"""Keys that are not known are looked for at most so often."""
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Signatures that are accepted; what a token says of its own is compared with these."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """What the issuer knows this platform by."""

    issuer: str
    client_id: str
    client_secret: str | None
    scopes: str

    def __repr__(self) -> str:
        return f"ClientIdentity({self.issuer!r}, {self.client_id!r})"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the issuer's document says (OpenID Connect Discovery 1.0, section 3)."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    auth_method: str
    """How the client proves itself at the token endpoint."""


@dataclass(slots=True)
class _Known:
    """What was asked last, and when."""

    endpoints: Endpoints | None = None
    keys: KeySet | None = None
    endpoints_at_s: float = 0.0
    keys_at_s: float = 0.0


class Issuer:
    """Asks the issuer, and remembers for an hour what it said of itself."""

    def __init__(self, identity: ClientIdentity, clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self.identity = identity
        self._clock = clock
        self._tls = httpx2.create_ssl_context()  # reads all authorities, which takes a while
        self._known = _Known()
        self._asking = asyncio.Lock()

    async def endpoints(self) -> Endpoints:
        """Where to send people and codes. Raises IssuerUnavailable."""
        async with self._asking:
            known, now_s = self._known, self._clock()
            if known.endpoints is None or now_s - known.endpoints_at_s >= DOCUMENT_S:
                known.endpoints = self._read(await self._get(self._document_url()))
                known.endpoints_at_s = now_s
            return known.endpoints

    async def claims_of(self, id_token: str) -> dict[str, object]:
        """The claims of an ID token whose signature is the issuer's.

        Raises:
            IssuerUnavailable: its keys cannot be read.
            JoseError, ValueError: it is not signed by a key of the issuer.
        """
        try:
            return _verified(id_token, await self._keys())
        except (InvalidKeyIdError, BadSignatureError, ValueError):
            # The issuer may have changed its keys.
            return _verified(id_token, await self._keys(KEYS_EVERY_S))

    @asynccontextmanager
    async def client(self, redirect_uri: str) -> AsyncIterator[AsyncOAuth2Client]:
        """An OAuth 2 client with this platform's identity."""
        endpoints = await self.endpoints()
        async with AsyncOAuth2Client(
            self.identity.client_id,
            self.identity.client_secret,
            scope=self.identity.scopes,
            redirect_uri=redirect_uri,
            token_endpoint_auth_method=endpoints.auth_method,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
            verify=self._tls,
        ) as client:
            yield client

    async def _keys(self, most_age_s: float = DOCUMENT_S) -> KeySet:
        endpoints = await self.endpoints()
        async with self._asking:
            known, now_s = self._known, self._clock()
            if known.keys is None or now_s - known.keys_at_s >= most_age_s:
                read = await self._get(endpoints.keys)
                try:
                    known.keys = KeySet.import_key_set(read)  # type: ignore[arg-type]  # it checks
                except (JoseError, ValueError, KeyError, TypeError):
                    raise IssuerUnavailable(f"{endpoints.keys} has no keys to read.") from None
                known.keys_at_s = now_s
            return known.keys

    def _document_url(self) -> str:
        return f"{self.identity.issuer.rstrip('/')}/.well-known/openid-configuration"

    def _read(self, document: dict[str, object]) -> Endpoints:
        if document.get("issuer") != self.identity.issuer:
            raise IssuerUnavailable(
                f"The issuer calls itself {str(document.get('issuer'))[:200]!r}, not "
                f"{self.identity.issuer!r} as LORAPLEX_OIDC_ISSUER does."
            )
        found = [document.get(f"{name}_endpoint") for name in ("authorization", "token")]
        authorization, token, keys = *found, document.get("jwks_uri")
        if not (
            isinstance(authorization, str) and isinstance(token, str) and isinstance(keys, str)
        ):
            raise IssuerUnavailable("The issuer's document lacks an endpoint.")
        userinfo = document.get("userinfo_endpoint")
        return Endpoints(
            authorization,
            token,
            keys,
            userinfo if isinstance(userinfo, str) else None,
            self._auth_method(document.get("token_endpoint_auth_methods_supported")),
        )

    def _auth_method(self, supported: object) -> str:
        if self.identity.client_secret is None:
            return "none"
        by_body_alone = (
            isinstance(supported, list)
            and "client_secret_basic" not in supported
            and "client_secret_post" in supported
        )
        return "client_secret_post" if by_body_alone else "client_secret_basic"

    async def _get(self, url: str) -> dict[str, object]:
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_S, verify=self._tls) as client:
                answer = await client.get(url)
            answer.raise_for_status()
            read = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise IssuerUnavailable(f"{url}: {type(error).__name__} {error}".strip()) from error
        if not isinstance(read, dict):
            raise IssuerUnavailable(f"{url} is no JSON object.")
        return read


def _verified(id_token: str, keys: KeySet) -> dict[str, object]:
    return dict(jwt.decode(id_token, keys, algorithms=ALGORITHMS).claims)
