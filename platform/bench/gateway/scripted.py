"""A worker without a model, in a process of its own: it speaks the stream, and says what costs it
nothing, so that the gateway's work is all there is to measure.

A request's program says how its tokens come: each `PACE_MS` milliseconds, as `paced`; all at once
as far as the stream takes them, as `flat`. It says, too, with how many others of its kind the
request begins: `flat 128`. Their first tokens come together, and the others a moment later, so that
whoever measures can tell what came before the tokens from the tokens.
"""

import asyncio
import sys
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loraplex.engine.frames import encode, read_frame
from loraplex.engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Finished,
    GatewayMessage,
    Hello,
    MetricsQuery,
    MetricsText,
    ModelInfo,
    StepFrame,
    Submit,
    Tokens,
    Usage,
    Welcome,
)

MODEL = "bench"
PACED, FLAT = "paced", "flat"
PACE_MS = 20.0
MOMENT_S = 0.3
_MAX_MODEL_LEN = 32_768
_WORDS = (" the", " of", " adapter", " and", " a", " model", " is", " tokens")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(slots=True)
class _Run:
    """A request, and how far it is."""

    submit: Submit
    num_tokens: int = 0

    @property
    def is_over(self) -> bool:
        return self.num_tokens >= self.submit.sampling.max_tokens

    def next_token(self) -> Tokens:
        """The next token; its text is a word."""
        number, self.num_tokens = self.num_tokens, self.num_tokens + 1
        return Tokens(
            request_id=self.submit.request_id,
            sequence=number,
            ids=(number % 256,),
            text=_WORDS[number % len(_WORDS)],
            finish_reason="length" if self.is_over else None,
        )

    def ending(self, *, is_aborted: bool = False) -> Finished:
        """Its end, as it stands."""
        usage = Usage(
            prompt_tokens=len(self.submit.prompt),
            cached_tokens=0,
            completion_tokens=self.num_tokens,
        )
        return Finished(
            request_id=self.submit.request_id,
            reason="abort" if is_aborted else "length",
            usage=usage,
        )


class _Kind:
    """The requests of one kind, which have their tokens by steps."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._gathering: list[_Run] = []
        self._runs: dict[str, _Run] = {}
        self._begun = asyncio.Event()

    def take(self, submit: Submit, number: int) -> None:
        """Take a request; the last of `number` begins with all of them."""
        self._gathering.append(_Run(submit))
        if len(self._gathering) >= number:
            begun = {run.submit.request_id: run for run in self._gathering}
            self._gathering = []
            self._step(begun)
            if begun:
                asyncio.get_running_loop().call_later(MOMENT_S, self._go_on, begun)

    def abort(self, request_id: str) -> None:
        """End a request."""
        run = self._runs.pop(request_id, None)
        if run is not None:
            self._send(finished=(run.ending(is_aborted=True),))

    async def run(self, pace_s: float) -> None:
        """Make steps until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            await self._begun.wait()
            due_s = max(due_s + pace_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            self._step(self._runs)
            await self._writer.drain()
            if not self._runs:
                self._begun.clear()

    def _go_on(self, begun: dict[str, _Run]) -> None:
        self._runs |= begun
        self._begun.set()

    def _step(self, runs: dict[str, _Run]) -> None:
        """Give each request a token; those that have all of theirs are taken out."""
        if not runs:
            return
        tokens = tuple(run.next_token() for run in runs.values())
        over = [run for run in runs.values() if run.is_over]
        for run in over:
            del runs[run.submit.request_id]
        self._send(tokens=tokens, finished=tuple(run.ending() for run in over))

    def _send(self, tokens: tuple[Tokens, ...] = (), finished: tuple[Finished, ...] = ()) -> None:
        frame = StepFrame(epoch="1", step=0, tokens=tokens, finished=finished)
        self._writer.write(encode(frame))


class ScriptedWorker:
    """Serves one gateway."""

    def __init__(self, model: ModelInfo, writer: StreamWriter) -> None:
        self._model = model
        self._writer = writer
        self._kinds = {PACED: _Kind(writer), FLAT: _Kind(writer)}

    async def serve(self, reader: StreamReader) -> None:
        """Converse until the gateway goes."""
        decoder = msgspec.msgpack.Decoder(GatewayMessage)
        steps = [
            asyncio.create_task(self._kinds[PACED].run(PACE_MS / 1e3)),
            asyncio.create_task(self._kinds[FLAT].run(0.0)),
        ]
        try:
            with suppress(IncompleteReadError, ConnectionError):
                while True:
                    self._take(await read_frame(reader, decoder))
        finally:
            for task in steps:
                task.cancel()
            self._writer.close()

    def _take(self, message: GatewayMessage) -> None:
        match message:
            case Hello():
                welcome = Welcome(protocol=PROTOCOL_VERSION, epoch="1", model=self._model)
                self._writer.write(encode(welcome))
            case Submit(program=program):
                kind, _, number = program.partition(" ")
                self._kinds[kind].take(message, int(number))
            case Abort(request_id):
                for each in self._kinds.values():
                    each.abort(request_id)
            case MetricsQuery(query_id):
                self._writer.write(encode(MetricsText(query_id, "")))


def model_info() -> ModelInfo:
    """A model as gateways see it: each byte is a token, and chats are framed as most are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|im_start|>", "<|im_end|>"]
    vocabulary = {text: number for number, text in enumerate([*alphabet, *specials])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return ModelInfo(
        name=MODEL,
        max_model_len=_MAX_MODEL_LEN,
        vocab_size=len(vocabulary),
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=_TEMPLATE,
        special_tokens={"eos_token": "<|im_end|>"},
        dtype="float32",
        device="cpu",
    )


async def serve(path: Path) -> None:
    """Serve gateways on a Unix socket until standard input ends, that is with the parent."""
    model = model_info()

    async def converse(reader: StreamReader, writer: StreamWriter) -> None:
        await ScriptedWorker(model, writer).serve(reader)

    async with await asyncio.start_unix_server(converse, path):
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
