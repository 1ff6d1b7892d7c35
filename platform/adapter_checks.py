"""Whether a folder is an adapter of the served model, with all that it brings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import Checkpoint, inspect
from loraplex.adapters.digest import with_profile
from loraplex.adapters.errors import CheckpointInvalid, Problem
from loraplex.adapters.limits import Limits
from loraplex.adapters.profile import TOKENIZER_FILE, Profile
from loraplex.adapters.profile_files import (
    TEMPLATE_FILE,
    BaseWays,
    ReadProfile,
    read_profile_files,
)
from loraplex.adapters.registry.registry import Publication
from loraplex.engine.errors import EngineUnavailable
from loraplex.engine.protocol import ModelInfo
from loraplex.platform.base_record import shapes_told
from loraplex.platform.errors import TokenizerUnsupported
from loraplex.platform.prompts import Prompts
from loraplex.platform.receiving import nicely
from loraplex.platform.services import Resources
from loraplex.platform.template_process import Template, TemplateFailed, TemplateProcesses
from loraplex.tenants import directory
from loraplex.tenants.ids import Entropy
from loraplex.tenants.limits import AdapterLimits

SAMPLES = (
    ({"role": "user", "content": "Hello"},),
    (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How are you?"},
    ),
)
"""Conversations that each template must render."""


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """An adapter that can be served."""

    checkpoint: Checkpoint
    """Its digest is the version's: it covers the profile."""
    profile: Profile

    def publication(self, name: str, base_model: str) -> Publication:
        """It as a version of a name; not tested yet."""
        checkpoint = self.checkpoint
        return Publication(
            name=name,
            digest=checkpoint.digest,
            rank=checkpoint.rank,
            num_bytes=checkpoint.num_bytes,
            base_model=base_model,
            num_modules=len(checkpoint.modules),
            profile=self.profile.encoded(),
            warnings=checkpoint.warnings,
        )


@dataclass(frozen=True, slots=True)
class Checker:
    """What adapters are checked against, and with."""

    model: ModelInfo
    templates: TemplateProcesses
    now: Callable[[], datetime]
    entropy: Entropy
    limits: Limits


def limits_of(own: AdapterLimits, **platform: int) -> Limits:
    """How large an adapter of a tenant may be; `platform` has fields of `Limits`."""
    most = Limits(**platform)
    return replace(
        most,
        max_rank=min(own.adapter_max_rank or most.max_rank, most.max_rank),
        max_targets=min(own.adapter_max_modules or most.max_targets, most.max_targets),
    )


async def check_adapter(resources: Resources, tenant_id: str, folder: Path) -> CheckedAdapter:
    """The same as `check_folder`, against the served model."""
    async with resources.database.reader() as session:
        own = (await directory.get(session, tenant_id)).adapters
    limits = limits_of(own, max_bytes=resources.settings.max_upload_bytes)
    model = resources.engine.model
    checker = Checker(model, resources.templates, resources.now, resources.entropy, limits)
    return await check_folder(checker, tenant_id, folder)


async def check_folder(checker: Checker, tenant_id: str, folder: Path) -> CheckedAdapter:
    """Check the checkpoint in a folder, with its profile.

    Raises CheckpointInvalid with every problem, EngineUnavailable before a worker has told its
    model, StorageUnavailable where the folder cannot be read.
    """
    model = checker.model
    shapes = base_shapes(model)
    ways = BaseWays(
        model.tokenizer_json, model.chat_template, model.special_tokens, model.vocab_size
    )

    def read() -> tuple[Checkpoint | None, ReadProfile, tuple[Problem, ...]]:
        try:
            checkpoint = inspect(folder, shapes, checker.limits)
        except CheckpointInvalid as error:
            return None, read_profile_files(folder, ways), error.problems
        own = replace(ways, vocab_size=checkpoint.vocab_size or model.vocab_size)
        found = read_profile_files(folder, own)
        return checkpoint, found, tuple(_unnamed_tokens(checkpoint, found.profile))

    checkpoint, found, problems = await nicely(read)
    problems += found.problems
    problems += await _tokenizer_problems(checker, folder, found.profile)
    problems += await _template_problems(checker, tenant_id, found.profile)
    if checkpoint is None or problems:
        raise CheckpointInvalid(problems)
    profile = msgspec.structs.replace(
        found.profile,
        invocation_tokens=checkpoint.config.invocation_tokens,
        vocab_size=checkpoint.vocab_size,
    )
    digest = with_profile(checkpoint.digest, profile.kept())
    return CheckedAdapter(replace(checkpoint, digest=digest), profile)


def _unnamed_tokens(checkpoint: Checkpoint, profile: Profile) -> Iterator[Problem]:
    """Refuse tokens that are in the weights alone: nobody could write or read them."""
    if checkpoint.vocab_size is not None and profile.tokenizer_sha256 is None:
        reason = (
            f"is missing, and the adapter has {checkpoint.vocab_size} tokens, more than the base "
            "model: upload the tokenizer that it was trained with"
        )
        yield Problem(TOKENIZER_FILE, "", reason)


def base_shapes(model: ModelInfo) -> BaseShapes:
    """What adapters of the served model must fit. Raises EngineUnavailable."""
    shapes = model.shapes
    if shapes is None:
        raise EngineUnavailable(
            f"The engine of {model.name} has not told its layers, so no adapter can be checked."
        )
    return shapes_told(shapes)


async def _tokenizer_problems(
    checker: Checker, folder: Path, profile: Profile
) -> tuple[Problem, ...]:
    """Whether user text can be told from the tokenizer's special tokens."""
    if profile.tokenizer_sha256 is None:
        return ()

    def load() -> None:
        data = (folder / TOKENIZER_FILE).read_bytes()
        own = msgspec.structs.replace(checker.model, tokenizer_json=data)
        Prompts(own, checker.now, checker.entropy)

    try:
        await nicely(load)
    except TokenizerUnsupported as error:
        return (Problem(TOKENIZER_FILE, "", str(error)),)
    return ()


async def _template_problems(
    checker: Checker, tenant_id: str, profile: Profile
) -> tuple[Problem, ...]:
    if profile.chat_template is None:
        return ()
    template = Template(tenant_id, profile.chat_template, profile.special_tokens)
    try:
        for sample in SAMPLES:
            await checker.templates.render(template, list(sample))
    except TemplateFailed as error:
        shown = ", ".join(message["role"] for message in sample)
        reason = f"fails on a conversation of {shown}: {error}"
        return (Problem(TEMPLATE_FILE, "", reason),)
    return ()
