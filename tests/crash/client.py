"""An independent client: it sends requests, and writes each byte that comes to a file as it comes.

It knows nothing of the program, and is a process of its own, so that what it has is what was
delivered. Standard input has one JSON list of requests; it ends when all of them have ended.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

TIMEOUT_S = 30.0


async def send(request: dict[str, Any], sent: asyncio.Barrier) -> None:
    """Send one request; with `leave_after`, go when so many bytes have come. What is read is read
    when all are sent."""
    body = json.dumps(request["body"]).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"authorization: Bearer {request['key']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    record = os.open(request["file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", request["port"])
                writer.write(head.encode() + body)
                await sent.wait()
                await receive(reader, record, request["leave_after"])
                writer.close()
    finally:
        os.close(record)


async def receive(reader: asyncio.StreamReader, record: int, leave_after: int | None) -> None:
    """Write down what comes until the end."""
    num_bytes = 0
    while leave_after is None or num_bytes < leave_after:
        data = await reader.read(65536)
        if not data:
            return
        os.write(record, data)
        num_bytes += len(data)


async def main() -> None:
    """Send all at once, and say so."""
    requests = json.load(sys.stdin)
    sent = asyncio.Barrier(len(requests) + 1)
    sending = [asyncio.create_task(send(request, sent)) for request in requests]
    await sent.wait()
    print("sent", flush=True)  # noqa: T201  the answer
    await asyncio.gather(*sending)


if __name__ == "__main__":
    asyncio.run(main())
