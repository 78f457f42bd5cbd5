"""Writes data/perplexity.json: how well the example model in float32 foretells data/perplexity.txt.

    python3 make_perplexity.py MODEL.gguf     (packages as for make_logits.py)

The text is tokenized once, by the oracle of make_tokenizer_texts.py, and cut into windows that are
read each by itself. Per window: the number of its tokens, SHA-256 of their ids (little-endian
uint32), the sum of the negative log likelihoods (natural) of all tokens but the first, and for each
of these the id with the largest logit and how far the second largest is below.
"""

import hashlib
import json
import math
import pathlib
import platform
import struct
import sys

import tokenizers
import torch
import transformers

from gguf_vocabulary import read_vocabulary
from make_logits import CAPITAL_IDS, CAPITAL_TOP_LOGITS
from make_tokenizer_texts import DATA_FOLDER, make_oracle

WINDOW_TOKENS = 1024


def fingerprint(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def check_model(model) -> None:
    logits = model(torch.tensor([CAPITAL_IDS])).logits[0, -1]
    for token, logit in CAPITAL_TOP_LOGITS.items():
        assert abs(logits[token].item() - logit) < 2e-4, (token, logits[token].item(), logit)


def describe_window(ids: list[int], model) -> dict:
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    log_probabilities = torch.log_softmax(logits, dim=-1)
    chosen = log_probabilities.gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    top = torch.topk(logits, 2)
    margins = (top.values[:, 0] - top.values[:, 1]).tolist()
    return {
        "tokens": len(ids),
        "ids_sha256": fingerprint(ids),
        "negative_log_likelihood": -chosen.sum().item(),
        "top_ids": top.indices[:, 0].tolist(),
        "margins": [float(f"{margin:.3g}") for margin in margins],
    }


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1]).resolve()
    oracle = make_oracle(read_vocabulary(str(path)), recognise_control_tokens=False)
    text = (DATA_FOLDER / "perplexity.txt").read_bytes()
    ids = oracle.encode(text.decode("utf-8"), add_special_tokens=False).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    with torch.inference_mode():
        check_model(model)
        windows = [describe_window(ids[start:start + WINDOW_TOKENS], model)
                   for start in range(0, len(ids), WINDOW_TOKENS)]
    predicted = sum(window["tokens"] - 1 for window in windows)
    total = sum(window["negative_log_likelihood"] for window in windows)
    document = {
        "model": path.name,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "tokenizers": tokenizers.__version__,
                     "python": platform.python_version()},
        "dtype": "float32",
        "window_tokens": WINDOW_TOKENS,
        "predicted_tokens": predicted,
        "perplexity": math.exp(total / predicted),
        "windows": windows,
    }
    # One value per line would be thousands of lines: lists of numbers stay on one line each.
    text = json.dumps(document, separators=(",", ":"))
    for key in ('"versions"', '"windows"', '{"tokens"', '"top_ids"', '"margins"'):
        text = text.replace(key, "\n" + key)
    (DATA_FOLDER / "perplexity.json").write_text(text + "\n", encoding="ascii")
    print(len(windows), "windows,", predicted, "tokens foretold, perplexity",
          document["perplexity"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
