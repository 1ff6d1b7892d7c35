"""One attempt to sign in elsewhere: begun here, gone through at the issuer, finished here.

Authorization code flow of OpenID Connect Core 1.0 with PKCE (RFC 7636). What must stay secret is
derived from a random cookie, so that the database has nothing that opens anything, and a code that
comes back to another browser is worth nothing.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwt import JWTClaimsRegistry

from loraplex.platform.oidc.errors import IssuerUnavailable, SignInFailed
from loraplex.platform.oidc.issuer import Endpoints, Issuer
from loraplex.platform.services import Resources
from loraplex.tenants import sign_in_states
from loraplex.tenants.identities import Identity
from loraplex.tenants.sign_in_states import Begun

_AGAIN = "Begin again on the sign-in page."
_CLOCKS = "If that happens again, the clocks of the issuer and of this gateway differ."


@dataclass(frozen=True, slots=True)
class Start:
    """Where the browser goes, and what it must bring back."""

    url: str
    state: str
    cookie: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Who came back, and where they wanted to go."""

    identity: Identity
    claims: dict[str, object]
    following: str


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts at one issuer."""

    issuer: Issuer
    resources: Resources

    async def begin(self, redirect_uri: str, following: str) -> Start:
        """Begin one that comes back to `redirect_uri`. Raises IssuerUnavailable."""
        entropy = self.resources.entropy
        state, cookie = entropy(32).hex(), entropy(32).hex()
        endpoints = await self.issuer.endpoints()
        async with self.issuer.client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                endpoints.authorization,
                state=state,
                nonce=_derived("nonce", cookie),
                code_verifier=_derived("verifier", cookie),
            )
        begun = Begun(_derived("browser", cookie), redirect_uri, following)
        async with self.resources.database.session() as session:
            await sign_in_states.keep(session, state, begun, self.resources.now())
        return Start(url, state, cookie)

    async def finish(self, query: Mapping[str, str], cookie: str | None) -> Finish:
        """Finish the attempt that the browser comes back from.

        Raises:
            SignInFailed: it is not an attempt of this browser, or the issuer says no, or what it
                says cannot be believed.
            IssuerUnavailable: the issuer cannot be asked.
        """
        async with self.resources.database.session() as session:
            begun = await sign_in_states.take(session, query.get("state", ""), self.resources.now())
        if begun is None:
            raise SignInFailed(f"This attempt is over, or was finished already. {_AGAIN}")
        if cookie is None or not hmac.compare_digest(begun.browser, _derived("browser", cookie)):
            raise SignInFailed(f"This attempt was begun in another browser. {_AGAIN}")
        if query.get("iss", self.issuer.identity.issuer) != self.issuer.identity.issuer:
            raise SignInFailed(f"Another issuer than the one that was asked answered. {_AGAIN}")
        if "error" in query:
            raise SignInFailed(f"The issuer refused: {_shown(query['error'])}. {_AGAIN}")
        endpoints = await self.issuer.endpoints()
        async with self.issuer.client(begun.redirect_uri) as client:
            id_token = await _exchange(client, endpoints, query.get("code", ""), cookie)
            claims = await self._believed(id_token, _derived("nonce", cookie))
            if "email" not in claims and endpoints.userinfo is not None:
                claims |= await _userinfo(client, endpoints.userinfo, claims["sub"])
        return Finish(_identity(self.issuer.identity.issuer, claims), claims, begun.following)

    async def _believed(self, id_token: str, nonce: str) -> dict[str, object]:
        """The claims of a token that is for this attempt (OpenID Connect Core 1.0, 3.1.3.7)."""
        identity = self.issuer.identity
        expected = JWTClaimsRegistry(
            now=int(self.resources.clock()),
            leeway=int(self.resources.settings.oidc_leeway_s),
            iss={"essential": True, "value": identity.issuer},
            aud={"essential": True, "value": identity.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims = await self.issuer.claims_of(id_token)
            expected.validate(claims)
        except ExpiredTokenError:
            raise SignInFailed(f"The issuer's answer has expired. {_AGAIN} {_CLOCKS}") from None
        except InvalidClaimError as error:
            clocks = f" {_CLOCKS}" if error.claim in ("iat", "nbf") else ""
            raise SignInFailed(
                f"The issuer's answer is not for this attempt: its {error.claim} is wrong. "
                f"{_AGAIN}{clocks}"
            ) from None
        except (JoseError, ValueError) as error:
            raise SignInFailed(
                f"The issuer's answer cannot be believed: {type(error).__name__}. {_AGAIN}"
            ) from None
        if claims.get("azp", identity.client_id) != identity.client_id:
            raise SignInFailed(f"The issuer's answer is for another client. {_AGAIN}")
        return claims


async def _exchange(client: AsyncOAuth2Client, endpoints: Endpoints, code: str, cookie: str) -> str:
    """The ID token of a code, which the issuer gives once."""
    try:
        answer = await client.fetch_token(
            endpoints.token,
            grant_type="authorization_code",
            code=code,
            code_verifier=_derived("verifier", cookie),
        )
    except OAuthError as error:
        raise SignInFailed(
            f"The issuer did not accept its code: {_shown(str(error.error))}. {_AGAIN}"
        ) from None
    except (httpx2.HTTPError, ValueError) as error:
        raise IssuerUnavailable(f"{endpoints.token}: {type(error).__name__}") from error
    id_token = answer.get("id_token")
    if not isinstance(id_token, str):
        raise SignInFailed("The issuer sent no ID token; LORAPLEX_OIDC_SCOPES must have openid.")
    return id_token


async def _userinfo(client: AsyncOAuth2Client, url: str, subject: object) -> dict[str, object]:
    """What the issuer tells of the person apart from the token; nothing where it does not."""
    try:
        answer = await client.get(url)
        told = answer.raise_for_status().json()
    except (httpx2.HTTPError, OAuthError, ValueError) as error:
        raise IssuerUnavailable(f"{url}: {type(error).__name__}") from error
    if not isinstance(told, dict) or told.get("sub") != subject:
        raise SignInFailed(f"The issuer told of somebody else. {_AGAIN}")
    return {name: told[name] for name in ("email", "email_verified", "name") if name in told}


def _identity(issuer: str, claims: dict[str, object]) -> Identity:
    email, name = claims.get("email"), claims.get("name")
    is_verified = claims.get("email_verified") is True
    return Identity(
        issuer=issuer,
        subject=str(claims["sub"]),
        verified_email=email if is_verified and isinstance(email, str) else None,
        name=name if isinstance(name, str) else "",
    )


def _derived(purpose: str, cookie: str) -> str:
    """43 characters that only who has the cookie can tell."""
    digest = hashlib.sha256(f"loraplex oidc {purpose}\0{cookie}".encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _shown(text: str) -> str:
    return "".join(c for c in text[:60] if c.isascii() and c.isprintable())
