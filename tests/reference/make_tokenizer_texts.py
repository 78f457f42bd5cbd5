"""Writes data/tokenizer_texts.json: token ids of 500 texts by an oracle that is not Baton.

    python3 make_tokenizer_texts.py MODEL.gguf     (needs the Python package `tokenizers`)

The oracle is byte-level BPE from the file's tokens and merges; every numeric character is split
off alone before the GPT-2 pattern. The tokenizer that `transformers` derives from the file is not
used: it leaves the digit splitting out. `plain` reads control tokens in a text as text, `special`
as ids.

The model's vocabulary has no token for 21 of the 256 bytes (0x04 0x06 0x13 0x14 0x16 0x1d 0xc0
0xc1 0xf1 0xf2 0xf5 to 0xff). The oracle leaves such bytes out before it merges, so their
neighbours can merge.
"""

import base64
import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import text_corpus
from gguf_vocabulary import Vocabulary, read_vocabulary

DATA_FOLDER = pathlib.Path(__file__).resolve().parent / "data"

# Known from another implementation; a change of the oracle's library must not change them.
VECTORS = {
    "  3": [256, 35],
    "x   42\n  7": [104, 333, 36, 34, 11181, 39],
    "a  3b": [81, 256, 35, 82],
    "The capital of France is": [504, 3575, 282, 4649, 314],
}


def make_oracle(vocabulary: Vocabulary, recognise_control_tokens: bool) -> Tokenizer:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    oracle = Tokenizer(models.BPE(vocab=ids, merges=vocabulary.merges))
    oracle.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    oracle.decoder = decoders.ByteLevel()
    if recognise_control_tokens:
        oracle.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                   for token in vocabulary.control_tokens()])
    return oracle


def check_vectors(plain: Tokenizer) -> None:
    for text, ids in VECTORS.items():
        found = plain.encode(text, add_special_tokens=False).ids
        assert found == ids, (text, found, ids)
    # Every numeric character stands alone: no token of these ids spells two of them.
    split = plain.pre_tokenizer.pre_tokenize_str("x²³ Ⅷ")
    assert [span for _, span in split] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], split


def spellable(text: str, vocabulary: Vocabulary) -> str:
    """The text without the bytes that no token spells; what decoding can give back at best."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    missing = alphabet - {token for token in vocabulary.tokens if len(token) == 1}
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
    kept = "".join(letter for letter in letters if letter not in missing)
    return decoders.ByteLevel().decode([kept])


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    vocabulary = read_vocabulary(sys.argv[1])
    plain = make_oracle(vocabulary, recognise_control_tokens=False)
    special = make_oracle(vocabulary, recognise_control_tokens=True)
    check_vectors(plain)
    rows = []
    for text in text_corpus.make_texts(vocabulary.control_tokens()):
        row = {
            "text_base64": base64.b64encode(text.encode("utf-8")).decode("ascii"),
            "plain": plain.encode(text, add_special_tokens=False).ids,
            "special": special.encode(text, add_special_tokens=False).ids,
        }
        decoded = plain.decode(row["plain"], skip_special_tokens=False)
        assert decoded == spellable(text, vocabulary), repr(text)
        rows.append(row)
    DATA_FOLDER.mkdir(exist_ok=True)
    target = DATA_FOLDER / "tokenizer_texts.json"
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    target.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="ascii")
    differing = sum(row["plain"] != row["special"] for row in rows)
    print(f"{target}: {len(rows)} texts, {differing} differ between the modes, "
          f"{sum(len(row['plain']) for row in rows)} ids, tokenizers {tokenizers.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
