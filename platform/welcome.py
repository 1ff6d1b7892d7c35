"""What `loraplex serve` tells a person once requests can be sent."""

import shlex

from loraplex.platform.serve import Ready

EXAMPLE_MODEL = "acme/support"
"""Of the demo: what the example is a message for."""
EXAMPLE = (
    "Hi, I was charged twice for order 48213 and nobody answers my mails. Please refund one of "
    "the two payments. Maria Lopez"
)


def welcome(ready: Ready) -> str:
    """The address, each tenant's key and models, and a request to paste."""
    at = f"--data-dir {shlex.quote(str(ready.data_dir))}"
    lines = ["", f"Loraplex serves {ready.base_model} on {ready.url}", ""]
    admin_key = ready.admin_key or f"revoked; make one with: loraplex admin-key create {at}"
    lines += [f"  console   {ready.url}/console", f"  admin key {admin_key}", ""]
    for tenant in ready.tenants:
        lines.append(f"  tenant {tenant.name}")
        remedy = f"revoked or rotated; make one with: loraplex key create {tenant.name} {at}"
        lines.append(f"    key     {tenant.key or remedy}")
        lines.append(f"    models  {', '.join((*tenant.adapters, ready.base_model))}")
        lines.append("")
    if ready.left_alone:
        names = ", ".join(ready.left_alone)
        lines += [f"  left alone, since deleted or not the demo's: {names}", ""]
    usable = [
        (tenant.key, model) for tenant in ready.tenants if tenant.key for model in tenant.adapters
    ]
    if not usable:
        lines += [
            "Make a tenant, a key and a model of its own:",
            f"  loraplex tenant create NAME {at}",
            f"  loraplex key create NAME {at}",
            f"  loraplex adapter push NAME/ADAPTER DIR {at}",
        ]
    else:
        key, model = next((each for each in usable if each[1] == EXAMPLE_MODEL), usable[0])
        lines += ["Try it:", *_curl(ready.url, key, model)]
    return "\n".join([*lines, "", "Ctrl-C drains and stops.", ""])


def _curl(url: str, key: str, model: str) -> list[str]:
    message = f'[{{"role": "user", "content": "{EXAMPLE}"}}]'
    return [
        f"  curl {url}/v1/chat/completions \\",
        f"    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\",
        f'    -d \'{{"model": "{model}", "temperature": 0, "messages": {message}}}\'',
    ]
