"""How requests on one adapter version are made, where that differs from the base model's ways."""

import msgspec

PROFILE_FILE = "profile.json"
TOKENIZER_FILE = "tokenizer.json"


class AddedToken(msgspec.Struct, frozen=True, array_like=True):
    """A token that an adapter's tokenizer has and the base's has not."""

    id: int
    text: str
    is_special: bool
    """True for one that adds nothing to an answer's text."""


class Profile(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What an adapter brings beside its weights; every default means the base model's own."""

    invocation_tokens: tuple[int, ...] = ()
    """Of an activated LoRA: from where on in a prompt it is in force. Its config says so."""
    vocab_size: int | None = None
    """Tokens that its weights have rows for, where these are more than the base's."""
    chat_template: str | None = None
    """Source of a Jinja template."""
    special_tokens: dict[str, str] = {}
    """`bos_token`, `eos_token`, … as the adapter's template names them; with a template alone."""
    tokenizer_sha256: str | None = None
    """Of the tokenizer.json that lies in the store beside the weights."""
    added_tokens: tuple[AddedToken, ...] = ()
    """What that tokenizer adds to the base's vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer beside the base model's own."""
    temperature: float | None = None
    """Sampling of requests that do not say; so below."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def encoded(self) -> str | None:
        """As JSON with sorted keys; None for the base model's ways."""
        return None if self == Profile() else msgspec.json.encode(self, order="sorted").decode()

    def kept(self) -> bytes | None:
        """What the store keeps of it and the digest covers: not what the adapter's config and
        weights say already. None where nothing is left."""
        text = msgspec.structs.replace(self, invocation_tokens=(), vocab_size=None).encoded()
        return None if text is None else text.encode()


def decode(text: str | bytes | None) -> Profile:
    """Read what `encoded` or `kept` wrote. Raises msgspec.ValidationError, DecodeError."""
    return Profile() if text is None else msgspec.json.decode(text, type=Profile)
