"""Prompts of requests, for the model that the engine serves and the adapters that bring their own
tokenizer or chat template. Nothing here blocks the event loop for long."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec

from loraplex.adapters.profile import TOKENIZER_FILE, Profile
from loraplex.adapters.storage import Store
from loraplex.engine.client import EngineClient
from loraplex.engine.protocol import ModelInfo
from loraplex.platform.errors import InvalidRequest, StorageUnavailable
from loraplex.platform.prompts import Chat, Prompt, Prompts, TokenIds, num_chars
from loraplex.platform.template_process import Template, TemplateFailed, TemplateProcesses
from loraplex.tenants.ids import Entropy

MAX_INLINE_CHARS = 2048
"""Longer prompts (about 1 ms of work) are encoded in a thread, so that the event loop runs on."""
NUM_THREADS = 2
NUM_LOADERS = 2
MAX_TOKENIZERS = 8
"""Of adapters, kept in memory; a large one takes some hundred MiB."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class AdapterInUse:
    """The adapter version that a request runs on."""

    tenant_id: str
    name: str
    """As the request resolved it, for messages."""
    digest: str
    profile: Profile

    def own_vocabulary(self, model: ModelInfo) -> ModelInfo:
        """The model with as many tokens as the adapter makes of it."""
        vocab_size = self.profile.vocab_size or model.vocab_size
        return msgspec.structs.replace(model, vocab_size=vocab_size)


class PromptsOfEngine:
    """Encodes prompts as the model and the adapter of each request want it; loads what is needed
    when it is first needed."""

    def __init__(
        self,
        engine: EngineClient,
        store: Store,
        templates: TemplateProcesses,
        now: Callable[[], datetime],
        entropy: Entropy,
    ) -> None:
        self._engine = engine
        self._store = store
        self._templates = templates
        self._now = now
        self._entropy = entropy
        self._loading = asyncio.Lock()
        self._loaded: Prompts | None = None
        self._own: OrderedDict[tuple[str, str], asyncio.Future[Prompts]] = OrderedDict()
        """By tenant and the digest of the tokenizer, used last at the end: no tenant learns from
        the time or the error of a load what another one uses."""
        self._threads = ThreadPoolExecutor(NUM_THREADS, "prompts")
        # Apart, since a store that is slow must not keep prompts waiting that need nothing of it.
        self._loaders = ThreadPoolExecutor(NUM_LOADERS, "tokenizers")

    async def encode(self, prompt: Prompt, adapter: AdapterInUse | None = None) -> tuple[int, ...]:
        """The token ids of a prompt, at least one.

        Raises as `Prompts.encode` and `load` do, InvalidRequest if the adapter's template fails,
        AdapterMissing, AdapterCorrupt, StorageUnavailable if its tokenizer cannot be had.
        """
        prompts = await self.load()
        if adapter is not None and adapter.profile.tokenizer_sha256 is not None:
            prompts = await self._own_tokenizer(adapter.own_vocabulary(prompts.model), adapter)
        if adapter is not None and adapter.profile.chat_template and isinstance(prompt, Chat):
            return await self._encode_chat(prompts, prompt, adapter, adapter.profile.chat_template)
        if isinstance(prompt, TokenIds) and prompt.ids and adapter is not None:
            size = adapter.profile.vocab_size or prompts.model.vocab_size
            return await self._in_thread(prompts.checked, prompt.ids, size)
        if num_chars(prompt) <= MAX_INLINE_CHARS:
            return prompts.encode(prompt)
        return await self._in_thread(prompts.encode, prompt)

    async def load(self) -> Prompts:
        """Load the model's tokenizer and template, unless they are loaded. Raises
        EngineUnavailable."""
        model = self._engine.model
        if self._loaded is None or self._loaded.model is not model:
            async with self._loading:
                self._loaded = await self._reload(self._loaded, model)
        return self._loaded

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)
        self._loaders.shutdown(wait=False)

    async def _encode_chat(
        self, prompts: Prompts, chat: Chat, adapter: AdapterInUse, source: str
    ) -> tuple[int, ...]:
        is_short = num_chars(chat) <= MAX_INLINE_CHARS
        draft = (
            prompts.draft(chat.messages)
            if is_short
            else await self._in_thread(prompts.draft, chat.messages)
        )
        template = Template(adapter.tenant_id, source, adapter.profile.special_tokens)
        try:
            rendered = await self._templates.render(template, draft.messages)
        except TemplateFailed as error:
            raise InvalidRequest(
                f"The chat template of {adapter.name} fails on these messages: {error}.",
                "messages",
                "chat_template_failed",
            ) from None
        if len(rendered) <= MAX_INLINE_CHARS:
            return prompts.finish(draft, rendered)
        return await self._in_thread(prompts.finish, draft, rendered)

    async def _own_tokenizer(self, model: ModelInfo, adapter: AdapterInUse) -> Prompts:
        """`Prompts` over the adapter's own tokenizer; loaded once, however many ask."""
        sha256 = adapter.profile.tokenizer_sha256
        assert sha256 is not None
        key = (adapter.tenant_id, sha256)
        loading = self._own.get(key)
        if loading is None:
            loop = asyncio.get_running_loop()
            loading = self._own[key] = loop.run_in_executor(
                self._loaders, self._load_own, model, adapter.digest, sha256
            )
            while len(self._own) > MAX_TOKENIZERS:
                self._own.popitem(last=False)
        self._own.move_to_end(key)
        try:
            prompts = await asyncio.shield(loading)
        except Exception:
            self._forget(key, loading)
            raise
        if prompts.model.name != model.name or prompts.model.vocab_size != model.vocab_size:
            self._forget(key, loading)
            return await self._own_tokenizer(model, adapter)
        return prompts

    def _forget(self, key: tuple[str, str], loading: asyncio.Future[Prompts]) -> None:
        if self._own.get(key) is loading:
            del self._own[key]

    def _load_own(self, model: ModelInfo, digest: str, sha256: str) -> Prompts:
        try:
            data = self._store.read_file(digest, TOKENIZER_FILE, sha256)
        except OSError as error:
            raise StorageUnavailable(error.strerror or str(error)) from error
        own = msgspec.structs.replace(model, tokenizer_json=data)
        return Prompts(own, self._now, self._entropy)

    async def _reload(self, loaded: Prompts | None, model: ModelInfo) -> Prompts:
        if loaded is None or loaded.model != model:
            return await self._in_thread(Prompts, model, self._now, self._entropy)
        # A worker that was started again introduced the same model: nothing to load.
        loaded.model = model
        return loaded

    async def _in_thread(self, function: Callable[..., R], *args: object) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
