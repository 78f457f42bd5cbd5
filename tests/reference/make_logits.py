"""Writes data/logits.json: float32 logits of Hugging Face transformers on the example model.

    python3 make_logits.py MODEL.gguf     (needs torch, transformers 5.24, accelerate, gguf, tokenizers)

For each of four prompts (token ids) and each of its last three positions: the 64 largest logits,
the logits of every 768th id, the mean over the vocabulary, and the margin of the largest over the
second. The weights are those of the file, dequantized to float32. The prompts are tokenized by the
oracle of make_tokenizer_texts.py, never by transformers.
"""

import json
import pathlib
import platform
import sys

import tokenizers
import torch
import transformers

from gguf_vocabulary import read_vocabulary
from make_tokenizer_texts import DATA_FOLDER, make_oracle

TOP_COUNT = 64
SAMPLE_STRIDE = 768
POSITION_COUNT = 3
GREEDY_TOKEN_COUNT = 16
LONG_PROMPT_TOKENS = 600

CAPITAL_PROMPT = "The capital of France is"
CAPITAL_IDS = [504, 3575, 282, 4649, 314]
# The five largest logits after CAPITAL_IDS, as measured when the project began.
CAPITAL_TOP_LOGITS = {7042: 17.3713, 260: 14.8886, 4528: 13.2450, 2250: 13.0095, 1315: 12.9515}

CHAT_PROMPT = ("<|im_start|>system\n"
               "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
               "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n"
               "<|im_start|>assistant\n")

CODE_PROMPT = '''def is_prime(n: int) -> bool:
    """Return True when n is a prime number."""
    if n < 2:
        return False
    for divisor in range(2, int(n ** 0.5) + 1):
        if n % divisor == 0:
            return'''

LONG_PROMPT = """The lighthouse on the northern cape was built in 1874, when ships still carried
coal and letters between the islands. Its first keeper, a quiet man called Aldous Wren, kept a
diary for thirty-one years. He wrote down the weather every morning and the number of ships every
night, and between the two he wrote very little. On the third of March he noted that the wind had
turned to the east and that the glass was falling. On the fourth he wrote that the sea had come
over the lower wall and carried away the boat, the coal shed, and eleven hens. On the fifth he
wrote only that the lamp had not gone out.

The lamp was a wonder of its time. A lens taller than a man turned on a bath of mercury, so lightly
that a child could push it with one finger, and threw a beam that fishermen claimed to see from
forty kilometres away. Oil was carried up one hundred and sixty-two steps twice a day. Wren's
daughter, Ines, counted the steps aloud until she was six and then in her head until she was
nineteen, when she left for the mainland to study mathematics. She returned only once, in the
autumn of 1899, with a brass instrument in a wooden box and a theory about the tides.

Her theory was simple to state and hard to believe. The currents around the cape, she said, did not
follow the moon alone but also the shape of the sea floor, which nobody had measured. For six weeks
she rowed out at dawn with a weight on a line and wrote depths into a table: twelve metres,
fourteen metres, nine, thirty, thirty-one, eight. When the table was finished she drew a map, and
on the map there was a ridge where every chart in the harbour showed open water. The harbour master
laughed at it. In November the steamer Caledonia, bound for the islands with two hundred
passengers, struck that ridge in calm weather and a clear night, and the harbour master did not
laugh again.

After that winter the map was copied and sent to every port along the coast. The ridge was named
Wren's Bank, and most people supposed that it was named after the keeper. Ines did not correct
them. She went on measuring, further out each summer, in larger boats and with better instruments,
until the whole northern shelf had been sounded and drawn. Her notebooks fill two shelves of the
library in the capital. They contain almost no words, only positions, depths and dates, and on the
last page of the last one, in a hand that had become unsteady, a single sentence that the
librarians like to show to visitors. It says that the sea is not deep because we cannot see the
bottom, it is deep because nobody has yet taken the trouble to let down a line. The lighthouse
itself was switched off in 1988, and the lens now stands in the entrance hall of the museum, where
children are allowed to push it with one finger."""


def long_ids(oracle) -> list[int]:
    text = LONG_PROMPT.replace("\n", " ").replace("  ", "\n\n")
    ids = oracle.encode(text, add_special_tokens=False).ids
    assert len(ids) >= LONG_PROMPT_TOKENS, len(ids)
    return ids[:LONG_PROMPT_TOKENS]


def shorten(value: float) -> float:
    """Nine significant digits give back every float32 exactly."""
    return float(f"{value:.9g}")


def describe_position(position: int, logits: torch.Tensor) -> dict:
    top = torch.topk(logits, TOP_COUNT)
    sample_ids = list(range(0, logits.shape[0], SAMPLE_STRIDE))
    return {
        "position": position,
        "margin": shorten((top.values[0] - top.values[1]).item()),
        "mean": shorten(logits.double().mean().item()),
        "top_ids": top.indices.tolist(),
        "top_logits": [shorten(value) for value in top.values.tolist()],
        "sample_ids": sample_ids,
        "sample_logits": [shorten(value) for value in logits[sample_ids].tolist()],
    }


def describe_prompt(name: str, ids: list[int], model) -> dict:
    logits = model(torch.tensor([ids])).logits[0].float()
    positions = range(len(ids) - POSITION_COUNT, len(ids))
    described = [describe_position(position, logits[position]) for position in positions]
    return {"name": name, "ids": ids, "positions": described}


def greedy(ids: list[int], model) -> list[int]:
    context = list(ids)
    for _ in range(GREEDY_TOKEN_COUNT):
        context.append(int(model(torch.tensor([context])).logits[0, -1].argmax()))
    return context[len(ids):]


def check_known_values(prompt: dict) -> None:
    last = prompt["positions"][-1]
    found = dict(zip(last["top_ids"], last["top_logits"]))
    assert last["top_ids"][:5] == list(CAPITAL_TOP_LOGITS), last["top_ids"][:5]
    for token, logit in CAPITAL_TOP_LOGITS.items():
        assert abs(found[token] - logit) < 2e-4, (token, found[token], logit)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1]).resolve()
    vocabulary = read_vocabulary(str(path))
    plain = make_oracle(vocabulary, recognise_control_tokens=False)
    special = make_oracle(vocabulary, recognise_control_tokens=True)
    capital_ids = plain.encode(CAPITAL_PROMPT, add_special_tokens=False).ids
    assert capital_ids == CAPITAL_IDS, capital_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    with torch.inference_mode():
        prompts = [
            describe_prompt("capital", capital_ids, model),
            describe_prompt("chat", special.encode(CHAT_PROMPT).ids, model),
            describe_prompt("code", plain.encode(CODE_PROMPT).ids, model),
            describe_prompt("long", long_ids(plain), model),
        ]
        prompts[0]["greedy"] = greedy(capital_ids, model)
    check_known_values(prompts[0])
    document = {
        "model": path.name,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "tokenizers": tokenizers.__version__,
                     "python": platform.python_version()},
        "dtype": "float32",
        "prompts": prompts,
    }
    target = DATA_FOLDER / "logits.json"
    # One value per line would be thousands of lines: lists of numbers stay on one line each.
    text = json.dumps(document, separators=(",", ":"))
    for key in ('"versions"', '"prompts"', '{"name"', '{"position"', '"top_ids"', '"top_logits"',
                '"sample_ids"', '"sample_logits"', '"greedy"'):
        text = text.replace(key, "\n" + key)
    target.write_text(text + "\n", encoding="ascii")
    for prompt in prompts:
        margins = [position["margin"] for position in prompt["positions"]]
        print(prompt["name"], len(prompt["ids"]), "ids, margins", margins)
    print("greedy", prompts[0]["greedy"], repr(plain.decode(prompts[0]["greedy"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
