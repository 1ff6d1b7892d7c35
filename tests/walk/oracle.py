"""What transformers and PEFT generate for one adapter alone, in a process of its own.

Reads `{"base": folder, "requests": [{"adapter": folder or null, "messages": …, "max_tokens": n}]}`
and prints for each the text, the number of tokens, and the smallest gap between the two largest
logits on its way, by which tests choose what to compare.
"""

import json
import os
import sys

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def generate(model, tokenizer, request: dict) -> dict:
    ids = tokenizer.apply_chat_template(
        request["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request["max_tokens"],
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=tokenizer.eos_token_id,
    )
    best = torch.stack(out.logits).float().topk(2, dim=-1).values.squeeze(1)
    generated = out.sequences[0, ids.shape[1] :]
    return {
        "text": tokenizer.decode(generated, skip_special_tokens=True),
        "num_tokens": len(generated),
        "margin": (best[:, 0] - best[:, 1]).min().item(),
    }


def main() -> None:
    asked = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(asked["base"])
    answers: dict[int, dict] = {}
    for adapter in {request["adapter"] for request in asked["requests"]}:
        model = AutoModelForCausalLM.from_pretrained(asked["base"], dtype=torch.float32)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, adapter)
        model.eval()
        for index, request in enumerate(asked["requests"]):
            if request["adapter"] == adapter:
                answers[index] = generate(model, tokenizer, request)
    json.dump([answers[index] for index in range(len(answers))], sys.stdout)


if __name__ == "__main__":
    main()
